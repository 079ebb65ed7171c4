"""Runs the comparisons with PyTorch, NumPy, safetensors and huggingface_hub: run.py BUILD_FOLDER."""
import sys

import common

if __name__ == '__main__':
    sys.exit(common.main(sys.argv[1], ['casts', 'checksums', 'dlpack', 'from_torch', 'hf_shards', 'leaves',
                                       'like_allclose', 'like_dcp', 'like_deepspeed', 'like_hub',
                                       'like_load_state_dict', 'like_numpy', 'like_pickle', 'like_safetensors',
                                       'like_weights_only', 'modules', 'rank_files',
                                       'structure', 'training_folders']))
