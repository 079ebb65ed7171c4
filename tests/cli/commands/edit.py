"""Tests safemap edit and safemap repair."""
from case import Case


class Edit(Case):
    def test_metadata_and_names(self):
        told = self.done('edit', 'small.safetensors', '--set', 'license=mit', '--set', 'note=a=b', '--rename',
                         's/^layers/model.layers/')
        self.assertEqual(list(told), ['changed', 'renamed', 'metadata', 'notes'])
        self.assertEqual((told['changed'], told['renamed'], told['notes']), (True, 2, []))
        self.assertEqual(told['metadata'], {'format': 'pt', 'license': 'mit', 'note': 'a=b', 'who': 'a "b"'})
        shown = self.done('inspect', 'small.safetensors')
        self.assertEqual(shown['metadata'], told['metadata'])
        self.assertIn('model.layers.0.w', [t['name'] for t in shown['tensors']])
        told = self.done('edit', 'small.safetensors', '--unset', 'license', '--unset', 'note')
        self.assertEqual(told['metadata'], {'format': 'pt', 'who': 'a "b"'})
        told = self.done('edit', 'small.safetensors', '--rename', 's/nothing/something/')
        self.assertEqual((told['changed'], len(told['notes'])), (False, 1))
        self.expect('edit', self.safemap('edit', 'small.safetensors', '--set', 'a=b').out)
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_invalid_edits_are_refused(self):
        before = self.done('inspect', 'small.safetensors')['metadata']
        for words in [(), ('--set', 'novalue'), ('--set', '=x'), ('--unset', 'missing'), ('--rename', 's/x'),
                      ('--set', 'a=b', '--include', '*')]:
            self.refused('invalid_argument', 2, 'edit', 'small.safetensors', *words)
        self.refused('name_collision', 2, 'edit', 'small.safetensors', '--rename', 's/layers.[01]/x/')
        self.refused('path_not_found', 2, 'edit', 'none.safetensors', '--set', 'a=b')
        self.refused('invalid_argument', 2, 'edit', '.', '--set', 'a=b')
        self.assertEqual(self.done('inspect', 'small.safetensors')['metadata'], before)


class Repair(Case):
    def test_faults_are_repaired_and_reported(self):
        whole = (self.folder / 'small.safetensors').read_bytes()
        (self.folder / 'long.safetensors').write_bytes(whole + b'xyz')
        self.refused('trailing_bytes', 1, 'inspect', 'long.safetensors')
        told = self.done('repair', 'long.safetensors', 'out.safetensors')
        self.assertEqual(list(told), ['repairs', 'tensors', 'files', 'bytes_written'])
        self.assertIn('3 bytes after the last tensor', told['repairs'][0])
        self.assertTrue(self.done('diff', 'small.safetensors', 'out.safetensors')['equal'])
        self.assertEqual(self.done('repair', 'out.safetensors', 'again.safetensors')['repairs'], [])
        self.refused('already_exists', 2, 'repair', 'long.safetensors', 'out.safetensors')
        self.expect('repair', self.safemap('repair', 'long.safetensors', 'out.safetensors', '--force').out)

    def test_a_file_that_cannot_be_repaired_is_refused(self):
        whole = (self.folder / 'small.safetensors').read_bytes()
        (self.folder / 'short.safetensors').write_bytes(whole[:-1])
        self.refused('file_truncated', 1, 'repair', 'short.safetensors', 'out.safetensors')
        self.refused('path_not_found', 2, 'repair', 'none.safetensors', 'out.safetensors')
        self.assertEqual(self.leftovers(), ['short.safetensors', 'small.safetensors'])
