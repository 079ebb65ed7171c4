"""Tests layers.py on small generated trees: accepted and refused includes."""
import pathlib
import tempfile
import unittest

import layers


def faults(**files):
    """Returns the faults of a tree, whose files are given as path=content, with __ for / and a trailing _hpp or _cpp.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = pathlib.Path(folder, name.replace('__', '/').replace('_hpp', '.hpp').replace('_cpp', '.cpp'))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return layers.check(folder)


class Layers(unittest.TestCase):
    def accepts(self, **files):
        self.assertEqual(faults(**files), [])

    def refuses(self, text, **files):
        found = faults(**files)
        self.assertEqual(len(found), 1, found)
        self.assertIn(text, found[0])

    def test_a_layer_may_include_itself_and_lower_layers(self):
        self.accepts(lib__lazy__a_cpp='#include "lazy/b.hpp"\n#include "base/pool.hpp"\n#include <safemap/shape.hpp>\n')

    def test_a_layer_may_not_include_sisters_or_higher_layers(self):
        self.refuses('io may not include tensor', lib__io__a_cpp='#include "tensor/kernels.hpp"\n')
        self.refuses('base may not include lazy', lib__base__a_hpp='#include "lazy/gatherer.hpp"\n')
        self.refuses('torch may not include safetensors', lib__torch__a_cpp='  #  include "safetensors/header.hpp"\n')

    def test_a_public_header_of_a_higher_layer_is_refused(self):
        self.refuses('belongs to checkpoint', lib__torch__a_cpp='#include <safemap/checkpoint.hpp>\n')
        self.refuses('belongs to lazy', include__safemap__shape_hpp='#include <safemap/lazy_tensor.hpp>\n')
        self.refuses('for users', lib__write__a_cpp='#include <safemap/safemap.hpp>\n')

    def test_public_headers_see_the_standard_library_only(self):
        self.accepts(include__safemap__save_hpp='#include <vector>\n#include <safemap/checkpoint.hpp>\n')
        self.refuses('standard library', include__safemap__save_hpp='#include <unistd.h>\n')
        self.refuses('standard library', include__safemap__save_hpp='#include "base/pool.hpp"\n')
        self.refuses('may see it', include__safemap__save_hpp='#include <simdjson.h>\n')

    def test_a_public_header_without_an_owner_is_refused(self):
        self.refuses('no layer owns', include__safemap__new_hpp='#include <vector>\n')

    def test_the_command_line_sees_public_headers_and_its_own(self):
        self.accepts(cli__main_cpp='#include "out.hpp"\n#include <safemap/save.hpp>\n#include <CLI/CLI.hpp>\n',
                     cli__out_hpp='#include <string>\n')
        self.refuses('their own only', cli__main_cpp='#include "base/pool.hpp"\n', lib__base__pool_hpp='')
        self.accepts(python__core__a_cpp='#include "run.hpp"\n#include <safemap/save.hpp>\n', cli__run_hpp='')
        self.refuses('their own only', python__core__a_cpp='#include "base/pool.hpp"\n', lib__base__pool_hpp='')

    def test_third_party_headers_are_allowed_only_where_they_are_listed(self):
        self.accepts(lib__io__mapping_cpp='#include <boost/interprocess/mapped_region.hpp>\n',
                     lib__base__checksum_cpp='#include <xxhash.h>\n')
        self.refuses('may see it', lib__io__file_cpp='#include <boost/interprocess/mapped_region.hpp>\n')
        self.refuses('may see it', tests__io__file_cpp='#include <CLI/CLI.hpp>\n')
        self.refuses('does not know', lib__base__text_cpp='#include <absl/strings/str_cat.h>\n')

    def test_a_header_in_the_same_folder_is_included_with_its_layer(self):
        self.refuses('"layer/file.hpp"', lib__base__a_cpp='#include "pool.hpp"\n')

    def test_a_folder_that_is_not_a_layer_is_refused(self):
        self.refuses('no layer', lib__misc__a_cpp='#include <vector>\n')

    def test_an_empty_tree_is_a_fault(self):
        self.assertEqual(len(faults()), 1)


if __name__ == '__main__':
    unittest.main()
