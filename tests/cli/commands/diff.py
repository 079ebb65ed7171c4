"""Tests safemap diff."""
import struct

from case import Case, SMALL
from forged import floats, safetensors, write_sparse


class Diff(Case):
    KEYS = ['equal', 'only_in_a', 'only_in_b', 'different', 'close', 'notes']

    def setUp(self):
        super().setUp()
        other = [('layers.1.w', 'F32', [2, 3], floats(-1, -2, -3, -4, 5, 3.4e38)),
                 ('layers.0.w', 'BF16', [2, 3], bytes(12)),
                 ('ids', 'I64', [1, 2], struct.pack('<2q', 7, -7)),
                 ('norm', 'F32', [2], struct.pack('<If', 0x7fc00001, 0.5)),
                 ('more.0', 'U8', [1], b'x'), ('more.1', 'U8', [1], b'x')]
        (self.folder / 'other.safetensors').write_bytes(safetensors(other))

    def test_every_kind_of_difference(self):
        result = self.safemap('diff', 'small.safetensors', 'other.safetensors', '--json')
        self.assertEqual((result.code, result.err), (1, ''))
        told = result.json()
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual((told['equal'], told['only_in_a'], told['only_in_b']), (False, ['none'], ['more.0', 'more.1']))
        self.assertEqual(told['different'], [
            {'name': 'layers.0.w', 'what': 'dtype', 'a': 'F32', 'b': 'BF16'},
            {'name': 'layers.1.w', 'what': 'value', 'a': '-5', 'b': '5', 'index': [1, 1]},
            {'name': 'ids', 'what': 'shape', 'a': [2], 'b': [1, 2]},
            {'name': 'norm', 'what': 'value', 'a': 'nan (0x7fc00000)', 'b': 'nan (0x7fc00001)', 'index': [0]}])

    def test_text(self):
        result = self.safemap('diff', 'small.safetensors', 'other.safetensors')
        self.assertEqual((result.code, result.err), (1, ''))
        self.expect('diff', result.out)
        quiet = self.safemap('diff', 'small.safetensors', 'other.safetensors', '--quiet')
        self.assertEqual((quiet.code, quiet.out, quiet.err), (1, '', ''))

    def test_shards_equal_the_file_they_came_from(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        told = self.done('diff', 'small.safetensors', 'out')
        self.assertEqual(told, {'equal': True, 'only_in_a': [], 'only_in_b': [], 'different': [], 'close': [],
                                'notes': []})
        self.expect('diff_equal', self.safemap('diff', 'small.safetensors', 'out', '--threads', '3').out)

    def test_selected_tensors_only(self):
        words = ('diff', 'small.safetensors', 'other.safetensors', '--include', 'layers.1.*', '--include', 'n*')
        told = self.safemap(*words, '--exclude', 'no*', '--json').json()
        self.assertEqual([d['name'] for d in told['different']], ['layers.1.w'])
        told = self.safemap('diff', 'small.safetensors', 'other.safetensors', '--include', 'none', '--json')
        self.assertEqual((told.code, told.json()['only_in_a']), (1, ['none']))

    def test_a_damaged_file_is_an_error_and_not_a_difference(self):
        (self.folder / 'cut.safetensors').write_bytes(safetensors(SMALL)[:100])
        for words in (('cut.safetensors', 'small.safetensors'), ('small.safetensors', 'cut.safetensors')):
            error = self.refused('header_past_end', 1, 'diff', *words)
            self.assertIn('cut.safetensors', error['path'])

    def test_diff_of_a_sparse_tebibyte_stops_at_the_first_difference(self):
        size = 1 << 40
        for name in 'ab':
            write_sparse(self.folder / f'{name}.safetensors', ['w'], size, lambda _: name.encode())
        told = self.safemap('diff', 'a.safetensors', 'b.safetensors', '--json', '--threads', '1').json()
        self.assertEqual(told['different'], [{'name': 'w', 'what': 'value', 'a': '97', 'b': '98', 'index': [0]}])


class DiffTolerance(Case):
    def write(self, name, *tensors, metadata=None):
        (self.folder / f'{name}.safetensors').write_bytes(safetensors(tensors, metadata))

    def told(self, code, *words):
        result = self.safemap('diff', 'a.safetensors', 'b.safetensors', *words, '--json')
        self.assertEqual((result.code, result.err), (code, ''), result.out)
        return result.json()

    def setUp(self):
        super().setUp()
        self.write('a', ('w', 'F32', [3], floats(1, 2, 100)), ('ids', 'I64', [1], struct.pack('<q', 7)),
                   ('x', 'F32', [2], floats(1, -0.5)))
        self.write('b', ('w', 'F32', [3], floats(1, 2.25, 101)), ('ids', 'I64', [1], struct.pack('<q', 7)),
                   ('x', 'BF16', [2], floats(1, -0.5)[2:4] + floats(1, -0.5)[6:8]))

    def test_values_may_differ(self):
        told = self.told(1, '--atol', '0.5', '--cast')
        self.assertEqual(told['different'], [{'name': 'w', 'what': 'value', 'a': '100', 'b': '101', 'index': [2],
                                              'max_abs': 1}])
        self.assertEqual(told['close'], [{'name': 'x', 'max_abs': 0}])
        told = self.told(0, '--rtol', '0.01', '--atol=0.23', '--cast')
        self.assertEqual((told['equal'], told['different']), (True, []))
        self.assertEqual(told['close'], [{'name': 'w', 'max_abs': 1}, {'name': 'x', 'max_abs': 0}])

    def test_dtypes_differ_without_cast(self):
        self.assertEqual([(d['name'], d['what']) for d in self.told(1, '--atol', '1')['different']], [('x', 'dtype')])
        told = self.told(1, '--cast')
        self.assertEqual([d['name'] for d in told['different']], ['w'])
        self.assertNotIn('max_abs', told['different'][0])

    def test_an_infinite_difference_is_null(self):
        self.write('a', ('w', 'F32', [1], floats(float('inf'))))
        self.write('b', ('w', 'F32', [1], floats(1)))
        self.assertIsNone(self.told(1, '--atol', '1e30')['different'][0]['max_abs'])

    def test_text(self):
        words = ('diff', 'a.safetensors', 'b.safetensors', '--cast')
        self.expect('diff_tolerance', self.safemap(*words, '--atol', '0.5').out)
        self.expect('diff_close', self.safemap(*words, '--atol', '1').out)

    def test_an_invalid_tolerance_is_refused(self):
        for bound in ('-1', 'x', 'inf', 'nan', '1e-5x'):
            error = self.refused('invalid_argument', 2, 'diff', 'a.safetensors', 'b.safetensors', '--rtol=' + bound)
            self.assertIn('--rtol', error['message'])

    def test_rename_options_change_the_names_of_the_first_checkpoint(self):
        self.write('a', ('module.h.0.w', 'U8', [1], b'x'), ('module.ids', 'U8', [1], b'y'), ('more', 'U8', [1], b'z'))
        self.write('b', ('layers.0.w', 'U8', [1], b'x'), ('ids', 'U8', [1], b'y'))
        words = ('--strip-prefix', 'module.', '--rename', 's/^h\\./layers./', '--rename', 's/never/x/')
        told = self.told(1, *words)
        self.assertEqual((told['only_in_a'], told['only_in_b'], told['different']), (['more'], [], []))
        self.assertEqual(told['notes'], ["--rename 's/never/x/': it changes no name"])
        self.assertTrue(self.told(0, *words, '--include', 'layers.*')['equal'])
        self.assertTrue(self.told(0, *words, '--exclude', 'more')['equal'])
        self.refused('tensor_not_found', 2, 'diff', 'a.safetensors', 'b.safetensors', *words, '--include', 'module.*')
        self.refused('name_collision', 2, 'diff', 'a.safetensors', 'b.safetensors', '--rename', 's/.*/one/')
        text = self.safemap('diff', 'a.safetensors', 'b.safetensors', '--rename', 's/ids/x.ids/').out
        self.assertIn('module.x.ids', text)

    def test_prefixes_and_ties_are_noted(self):
        self.write('a', ('model.w', 'U8', [1], b'x'), ('model.v', 'U8', [1], b'y'))
        self.write('b', ('w', 'U8', [1], b'x'), ('v', 'U8', [1], b'y'))
        self.assertEqual(self.told(1)['notes'], [
            "names of A begin with 'model.'; without it, they are the names of B (--strip-prefix model.)"])
        self.assertTrue(self.told(0, '--strip-prefix', 'model.')['equal'])
        self.write('a', ('w', 'U8', [1], b'x'), ('v', 'U8', [1], b'y'), metadata={'head': 'w'})
        self.assertEqual(self.told(1)['notes'], ["'head' is tied to 'w' in A, but not in B"])
        self.assertIn("note: 'head' is tied", self.safemap('diff', 'a.safetensors', 'b.safetensors').out)
