"""Tests safemap plan."""
import json

import case
from case import Case, SMALL
from forged import floats, header_of, safetensors


class Plan(Case):
    KEYS = ['ok', 'missing', 'unexpected', 'shape', 'dtype', 'tied', 'notes']
    FITS = {name: {'dtype': dtype, 'shape': shape} for name, dtype, shape, _ in SMALL}

    def expects(self, expected, file='model.json'):
        (self.folder / file).write_text(expected if isinstance(expected, str) else json.dumps(expected))
        return ('plan', 'small.safetensors', '--expect', file)

    def told(self, code, *words):
        result = self.safemap(*words, '--json')
        self.assertEqual((result.code, result.err), (code, ''), result.out)
        told = result.json()
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual(told['ok'], code == 0)
        return told

    def differs(self):
        """Returns an expectation that differs in every way."""
        return {'gone.0': {'dtype': 'F32', 'shape': [7]}, 'gone.1': {'dtype': 'F32', 'shape': [7]},
                'norm': {'dtype': 'bf16', 'shape': [1, 2]}, 'layers.0.w': {'dtype': 'F32', 'shape': [3, 2]},
                'layers.1.w': {'dtype': 'F32', 'shape': [3, 2]}, 'ids': {'dtype': 'torch.int32', 'shape': [2]}}

    def test_a_checkpoint_that_matches(self):
        words = self.expects(self.FITS)
        self.assertEqual(self.told(0, *words), {'ok': True, **{key: [] for key in self.KEYS[1:]}})
        self.assertEqual(self.safemap(*words).out,
                         'small.safetensors matches model.json: 5 tensors\n')
        self.assertEqual(self.told(0, *words, '--non-strict')['missing'], [])

    def test_every_kind_of_mismatch(self):
        words = self.expects(self.differs())
        told = self.told(1, *words)
        self.assertEqual((told['missing'], told['unexpected']), (['gone.0', 'gone.1'], ['none']))
        self.assertEqual(told['shape'], [{'name': 'norm', 'expected': [1, 2], 'found': [2]},
                                         {'name': 'layers.0.w', 'expected': [3, 2], 'found': [2, 3]},
                                         {'name': 'layers.1.w', 'expected': [3, 2], 'found': [2, 3]}])
        self.assertEqual(told['dtype'], [{'name': 'norm', 'expected': 'BF16', 'found': 'F32'},
                                         {'name': 'ids', 'expected': 'I32', 'found': 'I64'}])
        self.assertEqual(self.told(1, *words, '--non-strict'), told)

    def test_each_mismatch_alone(self):
        lacks = {name: tensor for name, tensor in self.FITS.items() if name != 'norm'}
        more = {**self.FITS, 'more': {'dtype': 'F32', 'shape': []}}
        for expected, key in ((lacks, 'unexpected'), (more, 'missing')):
            words = self.expects(expected)
            told = self.told(1, *words)
            self.assertEqual({k: v for k, v in told.items() if v}, {key: ['norm' if key == 'unexpected' else 'more']})
            self.assertEqual(self.told(0, *words, '--non-strict'), {**told, 'ok': True})
        for change in ({'dtype': 'F16', 'shape': [2]}, {'dtype': 'F32', 'shape': [2, 1]}):
            words = self.expects({**self.FITS, 'norm': change})
            self.assertEqual(self.told(1, *words), self.told(1, *words, '--non-strict'))

    def test_text(self):
        result = self.safemap(*self.expects(self.differs()))
        self.assertEqual((result.code, result.err), (1, ''))
        self.expect('plan', result.out)
        quiet = self.safemap(*self.expects(self.differs()), '--quiet')
        self.assertEqual((quiet.code, quiet.out, quiet.err), (1, '', ''))

    def test_text_with_non_strict(self):
        tied = {'norm': self.FITS['norm'], 'scale': {**self.FITS['norm'], 'alias_of': 'norm'},
                **{f'h.{i}.bias': {'dtype': 'F32', 'shape': [4]} for i in range(12)}}
        result = self.safemap(*self.expects(tied), '--non-strict')
        self.assertEqual((result.code, result.err), (0, ''))
        self.expect('plan_non_strict', result.out)

    def test_another_checkpoint_can_be_the_expectation(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        for path, expected in (('out', 'small.safetensors'), ('small.safetensors', 'out'),
                               ('out', 'out/model.safetensors.index.json')):
            self.assertTrue(self.told(0, 'plan', path, '--expect', expected)['ok'])
        self.done('convert', 'small.safetensors', 'half.safetensors', '--dtype', 'bf16')
        told = self.told(1, 'plan', 'half.safetensors', '--expect', 'small.safetensors')
        self.assertEqual([d['name'] for d in told['dtype']], ['layers.0.w', 'layers.1.w', 'norm'])

    def test_a_header_can_be_the_expectation(self):
        header = header_of(self.folder / 'small.safetensors')
        self.assertIn('__metadata__', header)
        self.assertTrue(self.told(0, *self.expects(header))['ok'])

    def test_ties(self):
        tied = [('wte', 'F32', [2], floats(1, 2))]
        (self.folder / 'tied.safetensors').write_bytes(safetensors(tied, {'head': 'wte'}))
        both = {name: {'dtype': 'F32', 'shape': [2]} for name in ('head', 'wte')}
        for expected in (both, {'head': both['head']}, {'wte': both['wte']},
                         {**both, 'out': {**both['wte'], 'alias_of': 'head'}}):
            self.expects(expected)
            told = self.told(0, 'plan', 'tied.safetensors', '--expect', 'model.json')
            self.assertEqual(told['tied'], [['wte', 'head'] + (['out'] if 'out' in expected else [])])

    def test_a_tensor_that_exists_but_cannot_be_loaded_is_noted(self):
        self.expects({'weight': {'dtype': 'F32', 'shape': [2, 2]}, 'real': {'dtype': 'F32', 'shape': [2, 2]}})
        told = self.told(1, 'plan', str(case.DATA / 'pt' / 'meta.pt'), '--expect', 'model.json')
        self.assertEqual(told['missing'], ['weight'])
        self.assertEqual(told['notes'], [
            "'weight' exists, but cannot be loaded: a tensor on the meta device, which has no data"])

    def test_a_common_prefix_is_noted(self):
        told = self.told(1, *self.expects({'model.' + name: tensor for name, tensor in self.FITS.items()}))
        self.assertEqual(told['notes'], [
            "names of the model begin with 'model.'; without it, they are the names of the checkpoint "
            "(--strip-prefix model.)"])
        self.assertEqual(len(told['missing']), 5)

    def test_selected_tensors_only(self):
        words = self.expects(self.differs())
        told = self.told(1, *words, '--include', 'gone.*', '--include', 'none')
        self.assertEqual((told['missing'], told['unexpected'], told['shape']), (['gone.0', 'gone.1'], ['none'], []))
        self.refused('tensor_not_found', 2, *words, '--include', 'nothing')
        self.told(0, *words, '--include', 'none', '--non-strict')

    def test_an_invalid_expectation_is_refused(self):
        for text, code in (('[]', 'expectation_not_json'), ('{"w":', 'expectation_not_json'),
                           ('{"w":' * 1000 + '1' + '}' * 1000, 'expectation_not_json'),
                           ('{"w":{"dtype":"F32"}}', 'expectation_bad_field'),
                           ('{"w":{"dtype":"F32","shape":[-1]}}', 'expectation_bad_field'),
                           ('{"w":{"dtype":"F32","shape":[]},"w":{"dtype":"F32","shape":[]}}', 'expectation_bad_field'),
                           ('{"w":{"dtype":"F33","shape":[]}}', 'unknown_dtype'),
                           ('{"w":{"dtype":"F32","shape":[4294967296,4294967296]}}', 'shape_overflow'),
                           ('no json', 'unknown_format'), ('', 'unknown_format')):
            error = self.refused(code, 1, *self.expects(text))
            self.assertEqual(error['path'], 'model.json')
        self.refused('path_not_found', 2, 'plan', 'small.safetensors', '--expect', 'nowhere.json')
        self.refused('path_not_found', 2, 'plan', 'nowhere', '--expect', 'small.safetensors')
        self.refused('invalid_argument', 2, 'plan', 'small.safetensors')
