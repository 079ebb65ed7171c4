"""Makes the files and folders that the examples of the pages name: model.pt, run/, step-1000/, ..."""
import dataclasses
import json
import pathlib
import random
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / 'tests/forge'), str(ROOT / 'bench/compare')]
import dcp_files
import forged
import zero_files

MODEL = zero_files.llama(hidden=32, narrow=16, inner=64, layers=2, vocabulary=128)


class Weights(zero_files.Weights):
    """Few random floats: enough for a model of these sizes, and made at once."""

    def __init__(self):
        values = random.Random(17)
        self.block = memoryview(forged.floats(*(values.uniform(-1, 1) for _ in range(65_521))))


def tensors(names):
    """Returns the tensors of MODEL by these names, as torch.save would pickle them."""
    return {name: zero_files.Tensor(zero_files.Storage(p.count, spans=[(p.begin, p.begin + p.count)]), p.shape)
            for name, p in zip(names, MODEL)}


def write_pt(path, value, weights):
    zero_files.Archive(path, weights).save(value)


class Files:
    """A folder with every file of the examples. `more` has those that only some pages name, by the page."""

    def __init__(self, folder, safemap, data):
        self.folder, self.run_safemap, self.data = folder, safemap, data
        folder.mkdir()
        self.weights = Weights()
        self.of_torch()
        self.of_training()
        self.of_safetensors()
        self.of_shelf()
        self.more = {f'docs/{page}.md': folder / f'of_{page}' for page in ('convert', 'deepspeed', 'fsdp', 'hf-shards')}
        shutil.copytree(folder / 'of_deepspeed/run' / zero_files.TAG, folder / 'of_deepspeed/run/global_step400')
        shutil.copytree(data / 'reports/verl_actor_folder', folder / 'of_fsdp/run/actor')
        shutil.copytree(folder / 'run', folder / 'of_convert/run/checkpoint-300')
        (folder / 'of_hf-shards').mkdir()
        self.safemap('convert', 'model.pt', 'of_hf-shards/run/', '--shards-for', '4')

    def safemap(self, *words):
        subprocess.run([self.run_safemap, *words, '--quiet'], cwd=self.folder, check=True)

    def of_torch(self):
        names = [p.name for p in MODEL]
        write_pt(self.folder / 'model.pt', tensors(names), self.weights)
        write_pt(self.folder / 'ddp.pt', tensors('module.' + name for name in names), self.weights)
        diffusion = tensors('model.diffusion_model.' + name for name in names)
        averages = tensors('model_ema.diffusion_model' + name.replace('.', '') for name in names)
        for file in ('sd.ckpt', 'model.ckpt'):
            write_pt(self.folder / file, {'global_step': 840000, 'state_dict': {**diffusion, **averages}}, self.weights)
        tied = tensors(names)
        write_pt(self.folder / 'tied.pt', {'lm_head.weight': tied['model.embed_tokens.weight'], **tied,
                                           'lm_head.weight': tied['model.embed_tokens.weight']}, self.weights)
        for name, file in (('train.pt', 'train_gpt.pt'), ('last.ckpt', 'lightning.ckpt'),
                           ('stranger.pt', 'broken/os_system.pt')):
            shutil.copy(self.data / 'pt' / file, self.folder / name)

    def of_training(self):
        zero_files.write(self.folder / 'run', 3, 4, MODEL, self.weights)
        for name in ('config.json', 'generation_config.json', 'tokenizer.json'):
            (self.folder / 'run' / name).write_text('{}')
        zero_files.write(self.folder / 'of_deepspeed/run', 2, 4, MODEL, self.weights)
        state = [dataclasses.replace(p, name=name % p.name) for name in ('model.%s', 'optimizer.state.%s.exp_avg')
                 for p in MODEL]
        dcp_files.write(self.folder / 'step-1000', state, (2, 2), self.weights, ['trainer.step'], root='')
        shutil.copytree(self.data / 'reports/fsdp1_raw_state', self.folder / 'flat')
        (self.folder / 'flat/manifest.json').rename(self.folder / 'manifest.json')
        shutil.copytree(self.folder / 'run', self.folder / 'deepspeed-run')
        shutil.copytree(self.data / 'reports/verl_actor_folder', self.folder / 'actor')

    def of_safetensors(self):
        self.safemap('convert', 'model.pt', 'model.safetensors')
        self.safemap('convert', 'model.pt', 'out/', '--max-shard-size', '40kB')
        self.safemap('convert', 'model.pt', 'f32/')
        self.safemap('convert', 'model.pt', 'bf16/', '--dtype', 'bf16')
        self.safemap('convert', 'model.pt', 'a.safetensors', '--include', 'model.layers.0.*')
        self.safemap('convert', 'model.pt', 'b.safetensors', '--include', 'model.layers.1.*')
        for part in ('a', 'b'):
            shutil.copy(self.folder / f'{part}.safetensors', self.folder / f'part-{part}.safetensors')
        for folder in ('models', 'downloads'):
            (self.folder / folder).mkdir()
            for file in ('model.pt', 'a.safetensors'):
                shutil.copy(self.folder / file, self.folder / folder)
        (self.folder / 'model-fp8').mkdir()
        name = 'model.layers.0.self_attn.q_proj.weight'
        quantised = [(name, 'F8_E4M3', [32, 32], bytes(range(64)) * 16),
                     (name + '_scale_inv', 'F32', [1, 1], forged.floats(2))]
        (self.folder / 'model-fp8/model.safetensors').write_bytes(forged.safetensors(quantised))
        shutil.copytree(self.data / 'reports/pipeline_folder', self.folder / 'pipeline')
        for part in ('scheduler', 'tokenizer'):
            (self.folder / 'pipeline' / part).mkdir()
        (self.folder / 'model.json').write_text(json.dumps({p.name: {'dtype': 'F32', 'shape': p.shape} for p in MODEL}))
        whole = (self.folder / 'a.safetensors').read_bytes()
        (self.folder / 'broken.safetensors').write_bytes(whole + b'\0' * 4)

    def of_shelf(self):
        shelf = self.folder / 'shelf'
        shelf.mkdir()
        for name in ('train.pt', 'last.ckpt', 'stranger.pt', 'broken.safetensors'):
            shutil.copy(self.folder / name, shelf)
        self.safemap('convert', 'train.pt', 'shelf/gpt.safetensors', '--root', 'auto')
