"""Tests safemap verify, and that every command that reads all of a file finds a wrong bit."""
import json
import os
import pathlib
import zipfile
import zlib

import case
from case import Case, SMALL
from forged import header_bytes, safetensors


class Verify(Case):
    KEYS = ['ok', 'tensors', 'bytes', 'checked_bytes', 'asks_for_code', 'verdict', 'findings', 'faults', 'notes']

    def test_a_valid_file_is_ok(self):
        told = self.done('verify', 'small.safetensors')
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual((told['ok'], told['tensors'], told['bytes'], told['faults']), (True, 5, 72, []))
        self.expect('verify', self.safemap('verify', 'small.safetensors').out)

    def test_help_has_no_options_that_are_refused(self):
        help_text = self.safemap('verify', '--help').out
        self.assertNotIn('clude', help_text)
        for option in ('--include', '--exclude'):
            error = self.refused('invalid_argument', 2, 'verify', 'small.safetensors', option, '*')
            self.assertIn(option, error['message'])

    def test_every_fault_is_reported(self):
        header = {'a': {'dtype': 'F32', 'shape': [3], 'data_offsets': [0, 8]},
                  'b': {'dtype': 'F32', 'shape': [2, 2], 'data_offsets': [8, 16]}}
        text = json.dumps(header).encode()
        (self.folder / 'bad.safetensors').write_bytes(header_bytes(text) + bytes(16))
        result = self.safemap('verify', 'bad.safetensors', '--json')
        self.assertEqual((result.code, result.err), (1, ''))
        told = result.json()
        self.assertEqual(list(told), self.KEYS)
        self.assertFalse(told['ok'])
        self.assertEqual([(f['code'], f['tensor']) for f in told['faults']],
                         [('size_mismatch', 'a'), ('size_mismatch', 'b')])
        for fault in told['faults']:
            self.assertIn('bad.safetensors', fault['path'])
            self.assertTrue(fault['message'])

        text = self.safemap('verify', 'bad.safetensors')
        self.assertEqual((text.code, text.err), (1, ''))
        self.expect('verify_faults', text.out)
        quiet = self.safemap('verify', 'bad.safetensors', '--quiet')
        self.assertEqual((quiet.code, quiet.out), (1, ''))
        self.assertEqual(quiet.err.count('safemap: error: '), 2)

    def test_changed_data_is_reported_with_the_tensor(self):
        self.done('convert', 'small.safetensors', 'out.safetensors', '--checksums')
        file = self.folder / 'out.safetensors'
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        result = self.safemap('verify', 'out.safetensors', '--json')
        self.assertEqual((result.code, result.err), (1, ''))
        told = result.json()
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual((told['ok'], told['checked_bytes']), (False, 72))
        [fault] = told['faults']
        self.assertEqual((fault['code'], fault['path'], fault['tensor']),
                         ('checksum_mismatch', 'out.safetensors', 'norm'))
        self.assertIn(self.done('hash', 'small.safetensors')['tensors']['norm'], fault['message'])
        self.assertIn(self.done('hash', 'out.safetensors')['tensors']['norm'], fault['message'])
        text = self.safemap('verify', 'out.safetensors').out
        self.assertIn("tensor 'norm'", text)
        self.assertIn('72 B compared with checksums', text)

    def test_an_unknown_format_is_a_fault(self):
        (self.folder / 'x.bin').write_bytes(b'GGUF and so on, at some length')
        result = self.safemap('verify', 'x.bin', '--json')
        self.assertEqual(result.code, 1)
        self.assertEqual(result.json()['faults'][0]['code'], 'unknown_format')

    def test_a_truncated_file_is_a_fault(self):
        (self.folder / 'cut.safetensors').write_bytes(safetensors(SMALL)[:-1])
        result = self.safemap('verify', 'cut.safetensors', '--json')
        self.assertEqual(result.code, 1)
        self.assertFalse(result.json()['ok'])


class Deflated(Case):
    """A file of torch.save that was repacked with deflate: every command that reads all of it finds a wrong bit."""

    def repack(self, name, spoil=None):
        """Writes the file `name`. If `spoil` names a record, one bit of its deflated bytes is flipped so that the data
        changes."""
        file = self.folder / name
        with zipfile.ZipFile(pathlib.Path(case.DATA, 'pt', 'aligned_1.pt')) as source:
            records = {info.filename: source.read(info) for info in source.infolist()}
        with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as packed:
            for record, data in records.items():
                packed.writestr(record, data)
            places = {info.filename: info for info in packed.infolist()}
        if spoil is None:
            return
        place = next(info for record, info in places.items() if record.endswith(spoil))
        sound = file.read_bytes()
        begin = place.header_offset + 30 + len(place.filename)
        for bit in range(place.compress_size * 8 - 1, -1, -1):
            data = bytearray(sound)
            data[begin + bit // 8] ^= 1 << bit % 8
            try:
                stream = zlib.decompressobj(-15)
                changed = stream.decompress(bytes(data[begin:begin + place.compress_size]))
            except zlib.error:
                continue
            if stream.eof and len(changed) == place.file_size and changed != records[place.filename]:
                file.write_bytes(data)
                return
        self.fail('no bit changes the data alone')

    def test_all_bytes_count_as_checked(self):
        self.repack('model.pt')
        with zipfile.ZipFile(self.folder / 'model.pt') as packed:
            total = sum(info.file_size for info in packed.infolist())
        told = self.done('verify', 'model.pt')
        self.assertEqual((told['ok'], told['checked_bytes']), (True, total))

    def test_a_wrong_bit_is_found_by_every_command(self):
        self.repack('model.pt')
        for record in ('data/0', 'data.pkl'):
            self.repack('bad.pt', record)
            result = self.safemap('verify', 'bad.pt', '--json')
            [fault] = result.json()['faults']
            self.assertEqual((result.code, fault['code'], fault['path']), (1, 'checksum_mismatch', 'bad.pt'))
            self.assertIn(record, fault['message'])
            for words in (('convert', 'bad.pt', 'out.safetensors'), ('convert', 'bad.pt', 'out', '--threads', '3'),
                          ('hash', 'bad.pt'), ('diff', 'model.pt', 'bad.pt'), ('load', 'bad.pt', '--device', 'host')):
                with self.subTest(words=words, record=record):
                    result = self.safemap(*words, '--json')
                    error = result.json()['error']
                    self.assertEqual((result.code, error['code'], error['path']), (1, 'checksum_mismatch', 'bad.pt'))
                    self.assertIn(record, error['message'])
            self.assertEqual(sorted(os.listdir(self.folder)), ['bad.pt', 'model.pt', 'small.safetensors'])
