"""Checks the documents against the program and the headers: docs.py SAFEMAP ROOT COMPILER...

- README.md quotes examples/tour.cpp to the letter, and docs/tutorial.md quotes a class of examples/server.cpp.
- docs/errors.md lists every error code of error.hpp, with the words of its comment.
- docs/cli.md lists exactly the options that each --help lists.
- docs/advanced.md lists every advanced header.
- The C++ of all pages, of the README's table and of the header comments compiles. A block that begins with #include is
  a whole program.
- Links in the pages lead to files and headings that exist.
- The notes that convert leaves out without --verbose are notes of the library.
- CITATION.cff, and the pages with a version, have that of the program.
"""
import pathlib
import re
import subprocess
import sys

COMMANDS = ('inspect', 'scan', 'convert', 'verify', 'diff', 'hash', 'plan', 'load', 'edit', 'repair', 'completions')


def quoted_example(root):
    tour = (root / 'examples/tour.cpp').read_text(encoding='utf-8').split('\n', 1)[1]
    readme = (root / 'README.md').read_text(encoding='utf-8')
    blocks = re.findall(r'```cpp\n(.*?)```', readme, re.DOTALL)
    return [] if tour in blocks else ['README.md: its C++ example is not examples/tour.cpp without the first comment']


def quoted_server(root):
    server = (root / 'examples/server.cpp').read_text(encoding='utf-8')
    tutorial_page = (root / 'docs/tutorial.md').read_text(encoding='utf-8')
    quoted = re.findall(r'```cpp\n(class Served.*?)```', tutorial_page, re.DOTALL)
    return [] if quoted and quoted[0] in server else ['docs/tutorial.md: its class Served is not that of the example']


def codes(root):
    """Yields each enumerator of Errc, its comment, and the exit code of its group."""
    header = (root / 'include/safemap/error.hpp').read_text(encoding='utf-8')
    body = re.search(r'enum class Errc.*?\{(.*?)\n\};', header, re.DOTALL).group(1)
    groups = {'The call is wrong.': 2, 'The data is wrong.': 1, 'The system failed while working.': 3}
    exit_code = None
    for line in body.split('\n'):
        if line.strip().startswith('// '):
            exit_code = groups[line.strip()[3:]]
        found = re.match(r'\s*(\w+),\s*///< (.*)', line)
        if found:
            code, text = found.groups()
            yield code, text, 130 if code == 'cancelled' else exit_code


def errors_page(root):
    page = (root / 'docs/errors.md').read_text(encoding='utf-8')
    rows = re.findall(r'^\| `(\w+)` \| (\d+) \| (.*) \|$', page, re.MULTILINE)
    wanted = [(code, str(exit_code), text.replace('|', '\\|')) for code, text, exit_code in codes(root)]
    assert len(wanted) > 50, 'the codes of error.hpp were not found'
    faults = [f'docs/errors.md: wants the row | `{c}` | {e} | {t} |' for c, e, t in wanted if (c, e, t) not in rows]
    faults += [f'docs/errors.md: the row of {row[0]} is not from error.hpp' for row in rows if row not in wanted]
    return faults or ([] if rows == wanted else ['docs/errors.md: the rows are not in the order of error.hpp'])


def options_of(safemap, command):
    text = subprocess.run([safemap, command, '--help'], check=True, stdout=subprocess.PIPE).stdout.decode()
    return set(re.findall(r'--[a-z][a-z-]*', text.split('Examples:')[0])) - {'--help'}


def cli_page(safemap, root):
    page = (root / 'docs/cli.md').read_text(encoding='utf-8')
    sections = dict(re.findall(r'^## (.*?)\n(.*?)(?=^## |\Z)', page, re.MULTILINE | re.DOTALL))
    cells = {title.split()[0]: re.findall(r'^\| (`--.*?) \| ', text, re.MULTILINE) for title, text in sections.items()}
    rows = {title: set(re.findall(r'`(--[a-z-]+)', ' '.join(first))) for title, first in cells.items()}
    common = re.findall(r'^\| `(--[a-z-]+).*\| (.*) \|$', sections['Every command'], re.MULTILINE)
    faults = []
    short_forms = set()
    for command in COMMANDS:
        shown = subprocess.run([safemap, command, '--help'], check=True, stdout=subprocess.PIPE).stdout.decode()
        short_forms |= set(re.findall(r'^  (-\w)(?:, (--[a-z-]+))? ', shown, re.MULTILINE))
        for_it = {option for option, meaning in common if f'`{command}`' not in meaning.partition('Not for ')[2]}
        if command == 'completions':  # opens nothing
            for_it = {'--json', '--quiet'}
        told, written = options_of(safemap, command), for_it | rows[command]
        faults += [f'docs/cli.md: {command} has no {option}' for option in sorted(written - told)]
        faults += [f'docs/cli.md: {option} of {command} is not there' for option in sorted(told - written)]
    short_forms.discard(('-h', '--help'))
    wanted = [f'\n| `{long}`, `{short}` |' if long else f'\n| `{short} ' for short, long in sorted(short_forms)]
    return faults + [f'docs/cli.md: no row begins with {row[1:]}' for row in wanted if row not in page]


# Declarations that the examples of the documents leave to their reader. The examples of all pages, and those of the
# comments of headers, are functions in one translation unit: parsing the headers is most of the work.
EXAMPLES = """
%s
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <numeric>
#include <thread>
using namespace safemap::literals;
namespace pages {
void use(const safemap::LazyTensor&);
void run(const safemap::DeviceTensor&);
void launch_repack(void*, void*, std::uint64_t);
void give_to_python(safemap::dlpack::ManagedTensorVersioned*);
safemap::dlpack::ManagedTensorVersioned* take_from_python();
void fetch(std::uint64_t, std::span<std::byte>);
void put(std::uint64_t, std::span<const std::byte>);
void log(const char*);
void free_some_space_and_retry();
%s
}
namespace headers {
using namespace safemap;
void use(const auto&...);
void fetch(std::uint64_t, std::span<std::byte>);
void put(std::uint64_t, std::span<const std::byte>);
void examples(
              const std::filesystem::path& path, const std::filesystem::path& folder, const Checkpoint& checkpoint,
              const Checkpoint& other, const LazyTensor& tensor, const std::vector<LazyTensor>& tensors,
              const TensorView& view, Uploader& uploader, const std::vector<Bundle>& bundles,
              const std::shared_ptr<Device>& device,
              const std::shared_ptr<const Source>& source, Sink& sink, const StateTree& tree, Team& team,
              std::vector<std::byte>& bytes, std::span<std::byte> buffer, std::uint64_t size, std::stop_token stop) {
%s
}
}
"""
ADVANCED = """const safemap::Checkpoint& model, const safemap::TensorView& view, std::span<const std::byte> part,
             std::uint64_t size"""


def compile_errors(root, compiler, program):
    done = subprocess.run([*compiler, '-std=c++20', '-fsyntax-only', '-Werror=unused-result', '-I', root / 'include',
                           '-x', 'c++', '-'],
                          input=program, stderr=subprocess.PIPE, text=True, check=False)
    return [] if done.returncode == 0 else [done.stderr]


def function(name, arguments, code):
    """Returns the function that the examples of one page become."""
    assert code, f'{name} has no example'
    body = code.replace('using namespace safemap::literals;', '')
    return f'void {re.sub("[^a-z]", "_", name)}({arguments}) {{\n#line 1 "examples of {name}"\n{body}}}\n'


def joined_blocks(root, page):
    """Returns the C++ of a page as one function body, in which later blocks continue earlier ones."""
    return '\n'.join(re.findall(r'```cpp\n(.*?)```', (root / page).read_text(encoding='utf-8'), re.DOTALL))


def separate_blocks(root, page):
    """Returns the C++ of a page as one function body. Each block has a scope; a function in it becomes a member."""
    text = (root / page).read_text(encoding='utf-8')
    code = ''
    for found in re.finditer(r'```cpp\n(?!#include)(.*?)```', text, re.DOTALL):
        block = re.sub(r'^.*// does not compile.*$', '', found[1], flags=re.MULTILINE)
        block = f'#line {1 + text.count(chr(10), 0, found.start(1))} "{page}"\n{block}'
        is_function = re.match(r'[\w:]+ \w+\(.*\) \{\n', found[1])
        code += f'{{ struct Example {{\n{block}}}; }}\n' if is_function else f'{{\n{block}}}\n'
    return code


def informative_notes(root):
    """Returns a fault for each note that convert leaves out, if no source has its words."""
    table = (root / 'cli/convert_report.cpp').read_text(encoding='utf-8').partition('informative[] = {')[2]
    parts = re.findall(r'^    "(.*)",', table.partition('};')[0], re.MULTILINE)
    sources = ''.join(path.read_text(encoding='utf-8') for path in sorted((root / 'lib').rglob('*.cpp')))
    sources = re.sub(r'"\s*"', '', sources)
    assert len(parts) > 10, 'the table of convert_report.cpp was not found'
    return [f'cli/convert_report.cpp: no note of lib/ has the words {part!r}' for part in parts if part not in sources]


def versions(safemap, root):
    version = subprocess.run([safemap, '--version'], check=True, stdout=subprocess.PIPE).stdout.decode().split()[-1]
    minor = version.rpartition('.')[0]
    wanted = {'CITATION.cff': f'\nversion: {version}\n', 'CHANGELOG.md': f'\n## {version}',
              'docs/building.md': f'find_package(safemap {minor} CONFIG)',
              'examples/cmake/CMakeLists.txt': f'find_package(safemap {minor} CONFIG '}
    return [f'{name}: has no {text.strip()}' for name, text in wanted.items()
            if text not in (root / name).read_text(encoding='utf-8')]


def dozen(root):
    """Returns the README's table of names that a server needs: its lines are one program."""
    readme = (root / 'README.md').read_text(encoding='utf-8')
    rows = re.findall(r'^\| `(\w+)` \| [^|]* \| `([^`]*)` \|$', readme, re.MULTILINE)
    faults = [] if len(rows) == 13 else [f'README.md: {len(rows)} names in the table, wanted about a dozen: 13']
    faults += [f'README.md: the line of {name} does not have it' for name, line in rows if name not in line]
    return faults, '\n'.join('try {} ' + line if line.startswith('catch') else line for _, line in rows)


def whole_programs(root, compiler):
    faults, programs_found = [], 0
    for page in sorted((root / 'docs').glob('*.md')):
        for program in re.findall(r'```cpp\n(#include.*?)```', page.read_text(encoding='utf-8'), re.DOTALL):
            programs_found += 1
            faults += [f'docs/{page.name}: {error}' for error in compile_errors(root, compiler, program)]
    return faults if programs_found else ['docs: no page has a whole program']


# The example in a header comment: lines that are indented by four more spaces, after a line that ends in "Example:".
HEADER_EXAMPLE = re.compile(r'^ */// (?:.* )?Example:\n(?P<code>(?: *///     .*\n)*)', re.MULTILINE)


def header_examples(root, headers):
    """Returns the examples of the comments of all public headers, each in its own block."""
    faults, blocks_of_code = [], []
    for header in headers:
        text, page = header.read_text(encoding='utf-8'), header.relative_to(root).as_posix()
        for found in HEADER_EXAMPLE.finditer(text):
            number = 1 + text.count('\n', 0, found.start('code'))
            code = re.sub(r'^ *///     ', '', found['code'], flags=re.MULTILINE)
            if not code:
                faults.append(f'{page}:{number}: no code after "Example:"')
            blocks_of_code.append(f'{{\n#line {number} "{page}"\n{code}}}\n')
    return faults if blocks_of_code else [*faults, 'include/safemap: no header has an example'], ''.join(blocks_of_code)


def examples(root, compiler):
    headers = sorted((root / 'include/safemap').glob('*.hpp'))
    headers += sorted((root / 'include/safemap/advanced').glob('*.hpp'))
    faults, table = dozen(root)
    header_faults, header_code = header_examples(root, headers)
    short = ''.join(separate_blocks(root, page.relative_to(root)) for page in sorted((root / 'docs').glob('*.md'))
                    if page.name not in ('tutorial.md', 'advanced.md'))
    pages = [
        function('the table of README.md', '', table),
        function('docs/tutorial.md', 'bool& stop', joined_blocks(root, 'docs/tutorial.md')),
        function('docs/advanced.md', ADVANCED, joined_blocks(root, 'docs/advanced.md')),
        function('the other pages', 'const safemap::Checkpoint& model, safemap::Uploader& uploader', short),
    ]
    includes = '\n'.join(f'#include <{header.relative_to(root / "include")}>' for header in headers)
    faults += header_faults + compile_errors(root, compiler, EXAMPLES % (includes, ''.join(pages), header_code))
    return faults + whole_programs(root, compiler)


def anchors_of(text):
    """Returns the anchors of the headings of a page, as GitHub names them."""
    headings = re.findall(r'^#+ (.*)$', re.sub(r'^```.*?^```$', '', text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    plain = (re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', heading) for heading in headings)
    return {re.sub(r'[^\w -]', '', heading.lower()).replace(' ', '-') for heading in plain}


def links(root):
    pages = [*root.glob('*.md'), *sorted((root / 'docs').glob('*.md'))]
    faults = []
    for page in pages:
        name = page.relative_to(root)
        for link in re.findall(r'\]\((?!https?:|mailto:)([^)\s]*)\)', page.read_text(encoding='utf-8')):
            file, _, anchor = link.partition('#')
            target = page.parent / file if file else page
            if not target.exists():
                faults.append(f'{name}: links to {file}, which does not exist')
            elif anchor and target.suffix == '.md' and anchor not in anchors_of(target.read_text(encoding='utf-8')):
                faults.append(f'{name}: {link} names no heading')
    return faults


def advanced_headers(root):
    page = (root / 'docs/advanced.md').read_text(encoding='utf-8')
    headers = sorted(f'`advanced/{path.name}`' for path in (root / 'include/safemap/advanced').glob('*.hpp'))
    return [f'docs/advanced.md: {header} is not in its table' for header in headers if f'| {header} |' not in page]


def main(safemap, root, *compiler):
    root = pathlib.Path(root)
    faults = quoted_example(root) + quoted_server(root) + errors_page(root)
    faults += cli_page(safemap, root) + advanced_headers(root) + examples(root, compiler)
    faults += links(root) + versions(safemap, root) + informative_notes(root)
    print('\n'.join(faults))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
