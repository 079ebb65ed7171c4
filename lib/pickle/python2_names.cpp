// Tables of names. The reference is CPython's Lib/_compat_pickle.py, and its use in Modules/_pickle.c. Tested by
// tests/pickle/python2_names_test.cpp and, against Python's own tables, by tests/interop/like_pickle.py.
#include "pickle/python2_names.hpp"

#include "pickle/words.hpp"

#include <algorithm>

namespace safemap::SAFEMAP_ABI {

namespace {

using Global = PickleGraph::Global;

/// NAME_MAPPING, without the exceptions that kept their names. Sorted.
constexpr auto name_mapping = rows_of<4, 41>(R"(UserDict IterableUserDict collections UserDict,
    UserDict UserDict collections UserDict, UserList UserList collections UserList,
    UserString UserString collections UserString, __builtin__ basestring builtins str,
    __builtin__ intern sys intern, __builtin__ long builtins int, __builtin__ reduce functools reduce,
    __builtin__ unichr builtins chr, __builtin__ unicode builtins str, __builtin__ xrange builtins range,
    _multiprocessing Connection multiprocessing.connection Connection, _socket fromfd socket fromfd,
    exceptions StandardError builtins Exception, itertools ifilter builtins filter,
    itertools ifilterfalse itertools filterfalse, itertools imap builtins map, itertools izip builtins zip,
    itertools izip_longest itertools zip_longest,
    multiprocessing AuthenticationError multiprocessing.context AuthenticationError,
    multiprocessing BufferTooShort multiprocessing.context BufferTooShort,
    multiprocessing ProcessError multiprocessing.context ProcessError,
    multiprocessing TimeoutError multiprocessing.context TimeoutError,
    multiprocessing.forking Popen multiprocessing.popen_fork Popen,
    multiprocessing.process Process multiprocessing.context Process, socket _socketobject socket SocketType,
    urllib ContentTooShortError urllib.error ContentTooShortError, urllib getproxies urllib.request getproxies,
    urllib pathname2url urllib.request pathname2url, urllib quote urllib.parse quote,
    urllib quote_plus urllib.parse quote_plus, urllib unquote urllib.parse unquote,
    urllib unquote_plus urllib.parse unquote_plus, urllib url2pathname urllib.request url2pathname,
    urllib urlcleanup urllib.request urlcleanup, urllib urlencode urllib.parse urlencode,
    urllib urlopen urllib.request urlopen, urllib urlretrieve urllib.request urlretrieve,
    urllib2 HTTPError urllib.error HTTPError, urllib2 URLError urllib.error URLError, whichdb whichdb dbm whichdb)");

/// Exceptions of Python 2's module `exceptions`, which are builtins of the same name. Sorted.
constexpr auto exceptions = rows_of<1, 47>(R"(ArithmeticError AssertionError AttributeError BaseException
    BufferError BytesWarning DeprecationWarning EOFError EnvironmentError Exception FloatingPointError
    FutureWarning GeneratorExit IOError ImportError ImportWarning IndentationError IndexError KeyError
    KeyboardInterrupt LookupError MemoryError NameError NotImplementedError OSError OverflowError
    PendingDeprecationWarning ReferenceError RuntimeError RuntimeWarning StopIteration SyntaxError SyntaxWarning
    SystemError SystemExit TabError TypeError UnboundLocalError UnicodeDecodeError UnicodeEncodeError UnicodeError
    UnicodeTranslateError UnicodeWarning UserWarning ValueError Warning ZeroDivisionError)");

/// IMPORT_MAPPING. Sorted.
constexpr auto modules = rows_of<2, 55>(R"(BaseHTTPServer http.server, CGIHTTPServer http.server,
    ConfigParser configparser, Cookie http.cookies, Dialog tkinter.dialog, DocXMLRPCServer xmlrpc.server,
    FileDialog tkinter.filedialog, HTMLParser html.parser, Queue queue, ScrolledText tkinter.scrolledtext,
    SimpleDialog tkinter.simpledialog, SimpleHTTPServer http.server, SimpleXMLRPCServer xmlrpc.server,
    SocketServer socketserver, StringIO io, Tix tkinter.tix, Tkconstants tkinter.constants, Tkdnd tkinter.dnd,
    Tkinter tkinter, UserDict collections, UserList collections, UserString collections, __builtin__ builtins,
    _abcoll collections.abc, _elementtree xml.etree.ElementTree, _winreg winreg, anydbm dbm, cPickle pickle,
    cStringIO io, commands subprocess, cookielib http.cookiejar, copy_reg copyreg, dbhash dbm.bsd, dbm dbm.ndbm,
    dumbdbm dbm.dumb, dummy_thread _dummy_thread, gdbm dbm.gnu, htmlentitydefs html.entities, httplib http.client,
    markupbase _markupbase, repr reprlib, robotparser urllib.robotparser, test.test_support test.support,
    thread _thread, tkColorChooser tkinter.colorchooser, tkCommonDialog tkinter.commondialog,
    tkFileDialog tkinter.filedialog, tkFont tkinter.font, tkMessageBox tkinter.messagebox,
    tkSimpleDialog tkinter.simpledialog, ttk tkinter.ttk, urllib2 urllib.request, urlparse urllib.parse,
    whichdb dbm, xmlrpclib xmlrpc.client)");

/// Modules that moved in PyTorch, NumPy and Python 3, for every protocol. Sorted.
constexpr auto moved = rows_of<2, 4>(R"(numpy.core.multiarray numpy._core.multiarray,
    numpy.core.numeric numpy._core.numeric, pathlib._local pathlib, torch.tensor torch._tensor)");

static_assert(std::is_sorted(name_mapping.begin(), name_mapping.end()));
static_assert(std::is_sorted(exceptions.begin(), exceptions.end()));
static_assert(std::is_sorted(modules.begin(), modules.end()));
static_assert(std::is_sorted(moved.begin(), moved.end()));

/// Returns the row that begins with those words, or null.
template <class... Words> auto* find(const auto& rows, Words... words) {
    const std::array<std::string_view, sizeof...(words)> key{words...};
    const auto begins = [&](const auto& row) { return std::equal(key.begin(), key.end(), row.begin()); };
    const auto before = [&](const auto& row, const auto&) {
        return std::lexicographical_compare(row.begin(), row.begin() + key.size(), key.begin(), key.end());
    };
    const auto row = std::lower_bound(rows.begin(), rows.end(), key, before);
    return row != rows.end() && begins(*row) ? &*row : nullptr;
}

Global from_python2(const Global& global) {
    if (const auto* row = find(name_mapping, global.module, global.name)) return {(*row)[2], (*row)[3]};
    if (global.module == "exceptions" && find(exceptions, global.name) != nullptr) return {"builtins", global.name};
    if (const auto* row = find(modules, global.module)) return {(*row)[1], global.name};
    return global;
}

}  // namespace

PickleGraph::Global in_python3(const Global& global, unsigned protocol) {
    const Global named = protocol < first_of_python3 ? from_python2(global) : global;
    if (const auto* row = find(moved, named.module)) return {(*row)[1], named.name};
    return named;
}

}  // namespace safemap::SAFEMAP_ABI
