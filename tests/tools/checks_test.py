"""Tests that the other scripts of this folder find the faults that they look for."""
import json
import pathlib
import shutil
import tempfile
import unittest

import budget
import built
import codes
import compile_fail
import count
import names
import nodiscard
import one_definition
import prose
import style

HEADER = '/// Codes.\nenum class Errc : std::uint8_t {\n    first,  ///< not a_comment\n    second,\n};\n'


class Budget(unittest.TestCase):
    def test_a_folder_has_its_number_of_jobs_and_no_more(self):
        commands = [{'output': f'{folder}/{i}.o'} for folder, most in budget.JOBS.items() for i in range(most)]
        alone = [{'output': f'tests/lint/libheaders_alone.a.p/{i}.o'} for i in range(100)]
        self.assertEqual(list(budget.jobs(commands + alone)), [])
        self.assertEqual(list(budget.jobs([*commands, {'output': 'cli/more.o'}])),
                         ['cli/: 7 compile jobs, and the budget is 6'])
        self.assertEqual(len(list(budget.jobs(alone))), len(budget.JOBS), 'no jobs at all are a fault of the count')

    def test_a_header_costs_its_lines_for_each_file_that_includes_it(self):
        with tempfile.TemporaryDirectory() as folder:
            tests = pathlib.Path(folder)
            (tests / 'a').mkdir()
            (tests / 'a/forge.hpp').write_text('\n' * 600)
            for i in range(10):
                (tests / f'a/{i}_test.cpp').write_text('#include "a/forge.hpp"\n')
            self.assertEqual(list(budget.headers(tests)), [])
            (tests / 'a/other.hpp').write_text('#include "a/forge.hpp"\n')
            self.assertEqual(list(budget.headers(tests)),
                             ['tests/a/forge.hpp: 11 files compile 6600 lines of it; move what it defines to a .cpp'])

    def test_a_test_that_takes_more_than_its_share_is_named(self):
        def log(*seconds):
            return [json.dumps({'name': f'safemap:unit / {name}', 'duration': took}) for name, took in seconds]
        self.assertEqual(list(budget.times(log(('lazy', 4.9), ('cli', 9.9)))), [])
        self.assertEqual(list(budget.times(log(('lazy', 5.1), ('base', 1)))),
                         ['lazy: takes 5.1 s, and its share is 5.0 s'])
        self.assertEqual(list(budget.times(log(('lazy', 9.9), ('base', 190.1)))),
                         ['base: takes 190.1 s, and its share is 10.0 s'])


class Built(unittest.TestCase):
    def test_a_source_that_no_build_names_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            layer, tests = pathlib.Path(folder, 'lib/base'), pathlib.Path(folder, 'tests/base')
            for where, names in ((layer, ('a.cpp', 'b.cpp')), (tests, ('a_test.cpp', 'data.cpp'))):
                where.mkdir(parents=True)
                for name in names:
                    (where / name).touch()
            (layer / 'meson.build').write_text("files('a.cpp')")
            self.assertEqual(built.check(folder), ['lib/base/b.cpp: not named in the meson.build beside it',
                                                   'tests/base/a_test.cpp: not named in the meson.build beside it'])
            (layer / 'meson.build').write_text("files('a.cpp', 'b.cpp')")
            (tests / 'meson.build').write_text("files('a_test.cpp')")
            self.assertEqual(built.check(folder), [])

    def test_a_file_of_the_package_that_is_not_installed_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder, 'python/safemap')
            for name in ('b.py', 'deep/a.py', 'deep/b.py'):
                (package / name).parent.mkdir(parents=True, exist_ok=True)
                (package / name).touch()
            (package.parent / 'meson.build').write_text("['safemap/b.py', 'safemap/deep/a.py']")
            self.assertEqual(built.check(folder), ['no sources found',
                                                   'python/safemap/deep/b.py: not named in python/meson.build'])


class Codes(unittest.TestCase):
    def faults(self, table, test):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {'include/safemap/error.hpp': HEADER, 'lib/base/error.cpp': table,
                               'tests/a/a_test.cpp': test}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return codes.check(folder)

    def test_comments_are_not_codes(self):
        self.assertEqual(codes.enumerators(HEADER), ['first', 'second'])

    def test_a_row_and_a_test_for_each_is_enough(self):
        self.assertEqual(self.faults('Row{first}, Row{second}', 'CHECK_FAULT(f(), Errc::first); "second"'), [])

    def test_a_code_without_a_row_is_found(self):
        self.assertEqual(self.faults('Row{first}  // second', 'Errc::first Errc::second'),
                         ['second: no row in lib/base/error.cpp'])

    def test_a_code_without_a_test_is_found(self):
        self.assertEqual(self.faults('first second', 'Errc::first // Errc::second'), ['second: no test names it'])


class CompileFail(unittest.TestCase):
    def faults(self, dangling, safe):
        compiler = shutil.which('c++')
        if not compiler:
            self.skipTest('no compiler is called c++')
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder, 'include/safemap/a.hpp')
            case = pathlib.Path(folder, 'tests/compile_fail/a.cpp')
            forms = f'#ifdef MUST_NOT_COMPILE\n{dangling}\n#else\n{safe}\n#endif\n'
            for path, text in ((header, 'void f(int&&) = delete;\nvoid f(int&);\n'),
                               (case, f'void g(int i) {{\n{forms}}}\n')):
                path.parent.mkdir(parents=True)
                path.write_text(text)
            count, found, _ = compile_fail.check(pathlib.Path(folder).resolve(), compiler)
            self.assertEqual(count, 2)
            return found

    def test_one_form_compiles_and_the_other_does_not(self):
        self.assertEqual(self.faults('f(1);', 'f(i);'), [])
        self.assertEqual(self.faults('f(i);', 'f(i);'), ['a.cpp: the dangling form compiles'])
        self.assertEqual(self.faults('f(1);', 'f(2);'), ['a.cpp: the safe form does not compile'])
        self.assertEqual(self.faults('f(i);', 'f(1);'), ['a.cpp: the dangling form compiles',
                                                         'a.cpp: the safe form does not compile'])


class OneDefinition(unittest.TestCase):
    def faults(self, *sources):
        with tempfile.TemporaryDirectory() as folder:
            for i, source in enumerate(sources):
                path = pathlib.Path(folder, f'lib/{i}.cpp')
                path.parent.mkdir(exist_ok=True)
                path.write_text(source)
            return one_definition.twice(pathlib.Path(folder))

    def test_two_types_of_one_name_are_found(self):
        one = 'namespace safemap::a {\n\nstruct Row {\n    struct Cell {};\n};\n\n}  // namespace safemap::a\n'
        self.assertEqual(self.faults(one, one.replace('struct Row', 'class Row final')),
                         {'safemap::a::Row': ['lib/0.cpp', 'lib/1.cpp']})
        self.assertEqual(self.faults(one, one.replace('safemap::a', 'safemap::b'), one.replace('Row', 'Line')), {})

    def test_types_in_unnamed_namespaces_are_their_own(self):
        one = 'namespace safemap {\n\nnamespace {\n\nstruct Row {};\n\n}  // namespace\n\n}  // namespace safemap\n'
        self.assertEqual(self.faults(one, one), {})


class Nodiscard(unittest.TestCase):
    def faults(self, text):
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder, 'include/safemap/a.hpp')
            header.parent.mkdir(parents=True)
            header.write_text('namespace safemap::SAFEMAP_ABI {\n' + text + '\n}\n')
            return [fault.partition(': ')[2].partition('(')[0] for fault in nodiscard.check(pathlib.Path(folder))]

    def test_a_function_whose_result_may_be_lost_is_found(self):
        for text in ('SAFEMAP_API std::vector<int> f(const B& b = {}, int c = g());', 'A f(int) const;',
                     'class A { int h() noexcept; public: static A f(int); private: int g(int); };',
                     'struct A { template <class T> std::span<const T> f() const& { return {}; } };',
                     'struct A { virtual bool f() const = 0; };', 'struct A { const B& f(int) const noexcept; };',
                     'constexpr int f(int b) noexcept { return b; }', 'class A;\nA f(); // [[nodiscard]]'):
            with self.subTest(text=text):
                self.assertEqual(self.faults(text), ['f'])

    def test_what_cannot_be_lost_or_may_be_is_not(self):
        for text in ('[[nodiscard]] SAFEMAP_API int f(int);', 'struct [[nodiscard]] A {};\nA f(int);',
                     'struct A { A(int); ~A(); A& f(int); int size() const noexcept; bool operator()(int) const; };',
                     'void f(int);', 'int f(A&&) = delete;', 'SaveReport save(int);',
                     'using F = std::function<int(int)>;',
                     'struct A { std::function<int(int)> f = {}; void (*g)(A*) = nullptr; int i = int(3); };',
                     'namespace detail { int f(int); }', 'class A { int f(int); };', 'constexpr int i = f(1);'):
            with self.subTest(text=text):
                self.assertEqual(self.faults(text), [])


class Names(unittest.TestCase):
    def names(self, text):
        return names.names_in('#pragma once\nnamespace safemap::SAFEMAP_ABI {\n' + text + '\n}\n')

    def test_each_kind_of_name_is_counted(self):
        for text, name in [('class [[nodiscard]] SAFEMAP_API A final : B { int f(); };', 'A'),
                           ('struct A { struct B {}; };', 'A'),
                           ('enum class A : std::uint8_t { b, c };', 'A'), ('using A = int;', 'A'),
                           ('SAFEMAP_API std::vector<int> a(const B& b = {}, int c = f());', 'a'),
                           ('constexpr int a(int b) noexcept { return b; }', 'a'),
                           ('inline constexpr std::uint64_t a = 1;', 'a'), ('inline constexpr int a[] = {1, 2};', 'a'),
                           ('template <class T> class A { T t; };', 'A'),
                           ('constexpr int operator""_K(unsigned long long n) { return 1; }', '_K')]:
            with self.subTest(text=text):
                self.assertEqual(self.names(text), [name])

    def test_overloads_are_one_name(self):
        self.assertEqual(self.names('void a(int);\nvoid a(char);'), ['a'])

    def test_comments_operators_forward_declarations_and_details_are_not_counted(self):
        self.assertEqual(self.names('// int a();\nclass B;\nstd::ostream& operator<<(std::ostream& o, int b);\n'
                                    'namespace detail { int c(); }\nnamespace { int d(); }\n'
                                    'void f(int) = delete;'), ['f'])


class Prose(unittest.TestCase):
    def faults(self, name, text):
        return [number for number, _ in prose.faults_of(name, text)]

    def test_plain_english_passes(self):
        self.assertEqual(self.faults('lib/a.cpp', '// Returns the offset,\n// of which all know.\nf("what is");'), [])
        self.assertEqual(self.faults('docs/a.md', '# What to do\n\n```\nis none\n```\n`is none`\n'), [])
        self.assertEqual(self.faults('tests/a.py', '"""A page.\n\nOf it."""\n# Why.\nx = "is none"  # of\n'), [])

    def test_first_words_of_comments_are_found(self):
        for text in ['// What is read.', '/// whether it is', 'int a;  ///< of b', '/** Those of a file. */',
                     '// A.\n//\n// Such.']:
            with self.subTest(text=text):
                self.assertEqual(len(self.faults('lib/a.cpp', text)), 1)
        self.assertEqual(self.faults('a.py', 'def f():\n    """What it does."""\n\n# Of\n'), [4, 1])

    def test_a_comment_of_several_lines_is_one(self):
        self.assertEqual(self.faults('lib/a.cpp', '/// The bytes\n/// of it.\nint a;  // The rest\n  // of it.'), [])
        self.assertEqual(self.faults('lib/a.cpp', 'int a;  ///< the rest\nint b;  ///< of it'), [2])

    def test_digit_separators_do_not_hide_comments(self):
        self.assertEqual(self.faults('lib/a.cpp', "f(1'000);  // of a\nf(2'000);  // of b"), [1, 2])

    def test_phrases_are_found_in_comments_pages_and_messages(self):
        self.assertEqual(self.faults('docs/a.md', 'One.\n\nThe tensor is told.\n'), [3])
        self.assertEqual(self.faults('lib/a.cpp', 'f("an alignment that is none");  // which is no dtype.'), [1, 1])
        self.assertEqual(self.faults('lib/a.cpp', 'f(R"(a\nb is none)"); g("mended");'), [1])
        self.assertEqual(self.faults('tests/a.cpp', 'f("an alignment that is none");'), [])
        self.assertEqual(self.faults('lib/a.cpp', '// There is no tensor. It is no longer here.'), [])

    def test_long_sentences_of_pages_are_found(self):
        self.assertEqual(self.faults('docs/a.md', 'a ' * 35 + '.\n' + 'b ' * 35 + '.\n'), [])
        self.assertEqual(self.faults('docs/a.md', 'One.\n\n- ' + 'a\n' * 36), [3])
        self.assertEqual(self.faults('docs/a.md', '| a | ' + 'b ' * 36 + ' |\n'), [1])


class Style(unittest.TestCase):
    def faults(self, text, name='lib/base/a.cpp'):
        return [what for _, what in style.faults_of(name, text.encode())]

    def test_a_clean_file_passes(self):
        self.assertEqual(self.faults('// Adds: a \u00d7 b.\nconst char* s = "\u00d7";\n'), [])

    def test_each_fault_is_found(self):
        for text in ['// B.\n\tint a;\n', '// B.\nint a; \n', '// B.\nint a;', '// B.\nint a;\n\n', '// B.\r\n',
                     '// B\u00a0C.\n', '// B.\nint \u00e4;\n', 'int a;\n', '// ' + 'b' * 118 + '\n']:
            with self.subTest(text=text):
                self.assertEqual(len(self.faults(text)), 1 + ('\r' in text))

    def test_the_first_line_says_more_than_the_name(self):
        for line, faults in [('// Parses names of files.', 0), ('// The table of file names.', 0),
                             ('// file_names.cpp: parses them.', 0), ('#include "base/file_names.hpp"', 1),
                             ('// file_names.cpp', 1), ('// Implements file_names.hpp.', 1), ('// The file names.', 1),
                             ('//', 1), ('#pragma once', 1), ('/* Parses names. */', 1), ('', 1)]:
            for name in ['lib/base/file_names.cpp', 'cli/file_names.hpp', 'tests/base/file_names_test.cpp']:
                with self.subTest(line=line, name=name):
                    self.assertEqual(len(self.faults(line + '\nint a;\n', name)), faults)

    def test_the_library_is_in_the_inline_namespace(self):
        for opened, faults in [('safemap', 1), ('safemap::io', 1), ('safemap::SAFEMAP_ABI', 0),
                               ('safemap::SAFEMAP_ABI::io', 0)]:
            with self.subTest(opened=opened):
                self.assertEqual(len(self.faults(f'// B.\nnamespace {opened} {{\n')), faults)
        self.assertEqual(self.faults('// B.\nnamespace safemap::cli {\n', 'cli/a.cpp'), [])

    def test_the_line_number_is_right_after_a_comment_of_several_lines(self):
        self.assertIn((4, 'a character beyond ASCII in code'),
                      style.faults_of('a.cpp', '// B.\n/* \u00d7\n*/\nint \u00e4;\n'.encode()))


class Count(unittest.TestCase):
    def test_programs_that_say_so_count_their_cases_and_others_one(self):
        summary = '[doctest] test cases: 12 | 11 passed |  1 failed | 0 skipped\n'
        log = [{'result': result} for result in ('OK', 'EXPECTEDFAIL', 'FAIL', 'SKIP', 'TIMEOUT')]
        log.append({'result': 'FAIL', 'stdout': summary})
        log.append({'result': 'FAIL', 'stdout': 'many words\n30 passed, 2 failed\n'})
        self.assertEqual(count.count(map(json.dumps, log)), (43, 5))

    def test_a_program_that_dies_after_its_summary_has_failed(self):
        summary = '[doctest] test cases: 2 | 2 passed | 0 failed | 0 skipped'
        self.assertEqual(count.count([json.dumps({'result': 'FAIL', 'stdout': summary})]), (2, 1))

    def test_failures_are_named_with_the_end_of_their_output(self):
        printed = 'first\n' + 'more\n' * count.SHOWN_LINES
        log = [{'name': 'good', 'result': 'OK', 'duration': 1.0, 'stdout': 'fine'},
               {'name': 'bad', 'result': 'TIMEOUT', 'duration': 2.0, 'stdout': printed}]
        shown, = count.failures(map(json.dumps, log))
        self.assertTrue(shown.startswith('--- bad: TIMEOUT after 2 s\nmore\n'))
        self.assertNotIn('first', shown)


if __name__ == '__main__':
    unittest.main()
