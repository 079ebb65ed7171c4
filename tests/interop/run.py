"""Compares safemap with PyTorch, safetensors and huggingface_hub: run.py BUILD_FOLDER."""
import sys

import common

if __name__ == '__main__':
    sys.exit(common.main(sys.argv[1], ['from_torch', 'like_hub', 'like_safetensors']))
