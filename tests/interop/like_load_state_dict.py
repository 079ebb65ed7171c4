"""Tests that safemap plan agrees with torch's load_state_dict on random models and checkpoints."""
import json
import re

import safetensors.torch
import torch

from common import Case, safemap


def module_of(tensors):
    """Returns a module whose state dict has these names and shapes; tensors that are one object are tied."""
    root, parameters = torch.nn.Module(), {}
    for name, tensor in tensors.items():
        *path, last = name.split('.')
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part]
        parameter = parameters.setdefault(id(tensor), torch.nn.Parameter(tensor.clone(), requires_grad=False))
        module.register_parameter(last, parameter)
    return root


def load(module, state):
    """Returns the missing keys, the unexpected keys, and the keys with another size."""
    try:
        done = module.load_state_dict(state, strict=False)
        return set(done.missing_keys), set(done.unexpected_keys), set()
    except RuntimeError as error:
        sizes = set(re.findall(r'size mismatch for (\S+): ', str(error)))
        for name in sizes:
            state = {**state, name: module.state_dict()[name]}
        missing, unexpected, none = load(module, state)
        assert not none
        return missing, unexpected, sizes


class LikeLoadStateDict(Case):
    def random_state(self):
        state = {}
        for _ in range(self.rng.randrange(1, 12)):
            name = f'{self.rng.choice("ab")}.{self.rng.randrange(3)}.{self.rng.choice("wvu")}'
            tied = self.rng.choice(list(state.values())) if state and self.rng.random() < 0.2 else None
            shape = [self.rng.choice([1, 1, 2]) for _ in range(self.rng.randrange(1, 3))]
            state.setdefault(name, torch.zeros(shape) if tied is None else tied)
        return state

    def expectation(self, state):
        path = self.folder / 'model.json'
        expected = {name: {'dtype': str(t.dtype), 'shape': list(t.shape)} for name, t in state.items()}
        path.write_text(json.dumps(expected))
        return path

    def test_random_models_and_checkpoints(self):
        fits = 0
        for _ in range(150):
            held = self.random_state()
            wanted = held if self.rng.random() < 0.1 else self.random_state()
            torch.save(held, self.folder / 'held.pt')
            missing, unexpected, sizes = load(module_of(wanted), held)
            # A tensor that the model loads under one name is not unexpected under another.
            used = {id(held[name]) for name in wanted if name in held}
            unexpected = {name for name in unexpected if id(held[name]) not in used}
            strict = not (missing or unexpected or sizes)
            fits += strict
            for words, ok in ((), strict), (('--non-strict',), not sizes):
                told = safemap('plan', self.folder / 'held.pt', '--expect', self.expectation(wanted), *words,
                               status=0 if ok else 1)
                self.assertEqual(told['ok'], ok)
                self.assertEqual((set(told['missing']), set(told['unexpected'])), (missing, unexpected))
                self.assertEqual({each['name'] for each in told['shape']}, sizes)
                self.assertEqual(told['dtype'], [])
        self.assertGreater(fits, 0)

    def test_a_tied_model_matches_a_file_of_save_model(self):
        weight = torch.ones(3, 2)
        model = module_of({'wte.weight': weight, 'head.weight': weight, 'b': torch.zeros(2)})
        safetensors.torch.save_model(model, self.folder / 'model.safetensors')
        told = safemap('plan', self.folder / 'model.safetensors', '--expect', self.expectation(model.state_dict()))
        self.assertEqual([set(group) for group in told['tied']], [{'wte.weight', 'head.weight'}])

    def test_a_dtype_mismatch_is_reported_with_both_dtypes(self):
        torch.save({'w': torch.zeros(2, dtype=torch.bfloat16)}, self.folder / 'held.pt')
        told = safemap('plan', self.folder / 'held.pt', '--expect', self.expectation({'w': torch.zeros(2)}), status=1)
        self.assertEqual(told['dtype'], [{'name': 'w', 'expected': 'F32', 'found': 'BF16'}])
