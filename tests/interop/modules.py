"""Tests whole pickled modules: names, order and bytes are those of state_dict() in every command, and tensors that
state_dict() omits are skipped."""
import collections
import json

import safetensors.torch
import torch
from torch import nn

from common import Case, raw, safemap

PROTOCOLS = [2, 3, 4, 5]


class Rotary(nn.Module):
    """A module with everything that state_dict() omits."""

    def __init__(self, size):
        self.early = 'set before the module is one'
        super().__init__()
        self.register_buffer('inverse', torch.randn(size), persistent=False)
        self.register_buffer('kept', torch.randn(size))
        self.register_buffer('absent', None)
        self.register_parameter('no_bias', None)
        self.scale = nn.Parameter(torch.randn(size), requires_grad=False)
        self.table = torch.randn(2, size)
        self.cache = {'keys': [torch.randn(3)]}
        self.hidden = [nn.Linear(1, 2)]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.twice = nn.ModuleList([nn.Linear(2, 2)] * 2)
        self.kept_too = [self.twice[0].weight, self.head]


def models():
    return {
        'linear': nn.Linear(3, 2),
        'nested': nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(nn.Conv1d(1, 2, 3)))),
        'named': nn.Sequential(collections.OrderedDict(conv=nn.Conv2d(1, 2, 3), norm=nn.BatchNorm1d(2, affine=False))),
        'not_persistent': nn.Sequential(Rotary(4), Rotary(2)),
        'tied': Tied(),
        'recurrent': nn.LSTM(3, 2, num_layers=2),
        'attention': nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2),
        'lists': nn.ModuleList([nn.ParameterList([torch.randn(2), torch.randn(1)]),
                                nn.ParameterDict({'a': torch.randn(2), 'b/c': torch.randn(1)}),
                                nn.ModuleDict({'a/b': nn.Linear(1, 1), 'relu': nn.ReLU(), '~': nn.PReLU()})]),
        'parallel': nn.DataParallel(nn.Sequential(nn.Linear(2, 2), nn.Dropout())),
        'old_weight_norm': nn.utils.weight_norm(nn.Linear(3, 2)),
        'spectral_norm': nn.utils.spectral_norm(nn.Linear(3, 2)),
        'half': nn.Sequential(nn.Linear(4, 4)).bfloat16(),
        'of_one_storage': nn.Sequential(nn.Linear(2, 3).double(), nn.BatchNorm1d(3)),
        'without_tensors': nn.Sequential(nn.ReLU()),
    }


class Modules(Case):
    def setUp(self):
        super().setUp()
        torch.manual_seed(self.rng.randrange(2**32))

    def save(self, thing, name='in.pt', **options):
        path = self.folder / name
        torch.save(thing, path, **options)
        return path

    def converted(self, path, *options):
        out = self.folder / 'out.safetensors'
        report = safemap('convert', path, out, '--force', *options)
        self.assertTrue(safemap('verify', out)['ok'])
        return out, report

    def assert_holds(self, out, wanted, *, below=''):
        """Checks every name, including tied ones, and the bytes of state_dict()."""
        hashes = safemap('hash', out)['tensors']
        self.assertEqual(sorted(hashes), sorted(below + name for name in wanted))
        tensors = {tensor['name']: tensor for tensor in safemap('inspect', out)['tensors']}
        stored = safetensors.torch.load_file(out)
        for name, tensor in wanted.items():
            entry = tensors[below + name]
            self.assert_same(stored[entry.get('alias_of', below + name)], tensor, name)

    def test_a_module_as_root_is_read_as_its_state_dict(self):
        for name, model in models().items():
            wanted = model.state_dict()
            formats = [{'pickle_protocol': protocol} for protocol in PROTOCOLS]
            for options in [*formats, {'_use_new_zipfile_serialization': False}]:
                with self.subTest(name, **options):
                    path = self.save(model, **options)
                    found = safemap('inspect', path)
                    first = dict.fromkeys(tensor['name'] for tensor in found['tensors'] if 'alias_of' not in tensor)
                    self.assertEqual(list(first), [key for key in wanted if key in first])  # in the same order
                    self.assertEqual(sorted(t['name'] for t in found['tensors']), sorted(wanted))
                    for policy in ('keep', 'drop'):
                        out, _ = self.converted(path, '--structure', policy)
                        self.assert_holds(out, wanted)

    def test_every_command_agrees_with_the_state_dict(self):
        for name, model in models().items():
            with self.subTest(name):
                whole, state = self.save(model), self.save(model.state_dict(), 'state.pt')
                self.assertEqual(safemap('hash', whole), safemap('hash', state))
                self.assertTrue(safemap('diff', whole, state)['equal'])
                self.assertTrue(safemap('plan', whole, '--expect', state)['ok'])
                self.assertTrue(safemap('verify', whole)['ok'])
                loaded = safemap('load', whole, '--device', 'host', '--digest')
                self.assertEqual(loaded['digests'], safemap('load', state, '--device', 'host', '--digest')['digests'])

    def test_modules_anywhere_in_a_tree(self):
        for name, model in models().items():
            optimizer = torch.optim.SGD([torch.randn(2, requires_grad=True)], lr=self.rng.random(), momentum=0.5)
            optimizer.param_groups[0]['params'][0].grad = torch.ones(2)
            optimizer.step()
            tree = {'epoch': 3, 'model': model, 'list': [{'deep': model}, nn.Linear(2, 1)],
                    'optimizer': optimizer.state_dict()}
            wanted = model.state_dict()
            every = {f'{path}/{key}': tensor for path in ('model', 'list/0/deep') for key, tensor in wanted.items()}
            every |= {f'list/1/{key}': tensor for key, tensor in tree['list'][1].state_dict().items()}
            every['optimizer/state/0/momentum_buffer'] = tree['optimizer']['state'][0]['momentum_buffer']
            with self.subTest(name):
                path = self.save(tree, pickle_protocol=self.rng.choice(PROTOCOLS))
                kept, _ = self.converted(path)
                self.assert_holds(kept, every)
                again = self.folder / 'again.safetensors'
                if wanted:
                    for source in (path, kept):
                        safemap('convert', source, again, '--root', 'model', '--structure', 'keep', '--force')
                        self.assert_holds(again, wanted)
                        safemap('convert', source, again, '--root', 'list/0/deep', '--force')
                        self.assert_holds(again, wanted)

    def test_root_selects_a_module_inside_a_module(self):
        model = models()['nested']
        out, _ = self.converted(self.save({'model': model}), '--root', 'model/1.1')
        self.assert_holds(out, model[1][1].state_dict())

    def test_tensors_outside_the_state_dict_are_skipped(self):
        model = models()['not_persistent']
        wanted = {f'model/{part}.{name}' for part in (0, 1)
                  for name in ('inverse', 'table', 'cache/keys/0', 'hidden/0/_parameters/weight',
                               'hidden/0/_parameters/bias')}
        path = self.save({'model': model})
        listed = safemap('inspect', path, '--root', '')['objects']
        objects = {each['name'] for each in listed if each['type'] == 'torch.Tensor'}
        self.assertEqual(objects, wanted)
        _, report = self.converted(path, '--root', '')
        why = {each['name']: each['why'] for each in report['skipped']}
        self.assertEqual(set(why), wanted | {'model', 'model/0.hidden/0', 'model/1.hidden/0'})
        self.assertIn('persistent', why['model/0.inverse'])
        self.assertIn('attribute', why['model/1.table'])

    def test_a_tensor_with_a_name_elsewhere_is_not_skipped(self):
        for name in ('recurrent', 'tied'):
            _, report = self.converted(self.save(models()[name]))
            self.assertEqual([each['name'] for each in report['skipped']], ['~root'])
        rotary = Rotary(2)
        out, report = self.converted(self.save({'model': rotary, 'table': rotary.table}))
        self.assertNotIn('model/table', {each['name'] for each in report['skipped']})
        self.assertEqual(raw(safetensors.torch.load_file(out)['table']), raw(rotary.table))

    def test_the_structure_has_every_tensor_at_its_place(self):
        model = models()['not_persistent']
        out, _ = self.converted(self.save(model))
        root = json.loads(safetensors.safe_open(out, 'pt').metadata()['safemap.structure'])['root']
        self.assertEqual(root[:2], ['o', 'torch.nn.modules.container.Sequential'])
        rotary = root[3]['_modules']['0']
        self.assertEqual(rotary[1].split('.')[-1], 'Rotary')
        self.assertEqual(rotary[3]['_parameters'], {'no_bias': None, 'scale': ['T', {'n': '0.scale', 'p': 1}]})
        self.assertEqual(rotary[3]['_buffers']['kept'], ['T', {'n': '0.kept'}])
        self.assertEqual(rotary[3]['_buffers']['inverse'][:2], ['o', 'torch.Tensor'])
        again = self.folder / 'again.safetensors'
        safemap('convert', out, again)
        self.assertEqual(json.loads(safetensors.safe_open(again, 'pt').metadata()['safemap.structure'])['root'], root)
