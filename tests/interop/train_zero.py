"""Trains a tiny model with DeepSpeed for two steps and saves it: train_zero.py STAGE WORLD OUT.

OUT/checkpoint is the checkpoint, and OUT/live.safetensors holds the fp32 weights and moments of the running engine.
"""
import os
import pathlib
import socket
import sys

import torch
from safetensors.torch import save_file


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(23, 7)
        self.up = torch.nn.Linear(7, 11)
        self.down = torch.nn.Linear(11, 7)
        twice = torch.nn.Linear(11, 11)
        self.body = torch.nn.Sequential(twice, torch.nn.ReLU(), twice)
        self.gain = torch.nn.Parameter(torch.ones(1))
        self.register_buffer('seen', torch.tensor(5))

    def forward(self, x):
        return (self.down(self.body(torch.relu(self.up(self.embed(x))))) * self.gain).square().mean()


def live(engine):
    """Returns the fp32 weights and moments that all ranks have together."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    tensors = {}
    for name, parameter in engine.module.named_parameters():
        tensors[name] = safe_get_full_fp32_param(parameter).clone()
        for moment in ('exp_avg', 'exp_avg_sq'):
            tensors[f'optimizer/state/{name}/{moment}'] = safe_get_full_optimizer_state(parameter, moment).clone()
    return tensors


def train(rank, stage, world, port, out):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR='127.0.0.1',
                      MASTER_PORT=str(port), DS_ACCELERATOR='cpu')
    import deepspeed
    deepspeed.init_distributed('gloo')
    torch.manual_seed(1)
    net = Net()
    config = {'train_micro_batch_size_per_gpu': 2, 'bf16': {'enabled': True},
              'zero_optimization': {'stage': stage, 'stage3_param_persistence_threshold': 0}}
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(net.parameters(), lr=1e-2),
                                      config={**config, 'zero_allow_untested_optimizer': True})
    for step in range(2):
        torch.manual_seed(10 * step + rank)
        loss = engine(torch.randint(0, 23, (2, 5)))
        engine.backward(loss)
        engine.step()
    tensors = live(engine)
    engine.save_checkpoint(out + '/checkpoint')
    if rank == 0:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out + '/live.safetensors')
    torch.distributed.barrier()


def free_port():
    with socket.socket() as server:
        server.bind(('127.0.0.1', 0))
        return server.getsockname()[1]


if __name__ == '__main__':
    STAGE, WORLD, OUT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    pathlib.Path(OUT).mkdir(parents=True, exist_ok=True)
    torch.multiprocessing.spawn(train, (STAGE, WORLD, free_port(), OUT), nprocs=WORLD)
