// The tables. The reference is CPython's Lib/_compat_pickle.py, with what Modules/_pickle.c does with it. Tested by
// tests/pickle/python2_names_test.cpp and, against Python's own tables, by tests/interop/like_pickle.py.
#include "pickle/python2_names.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>

namespace safemap::SAFEMAP_ABI {

namespace {

using Global = PickleGraph::Global;

struct RenamedName {
    std::string_view module, name, new_module, new_name;
};
struct RenamedModule {
    std::string_view module, new_module;
};

/// NAME_MAPPING, but for the exceptions that kept their names. Sorted.
constexpr std::array names{
    RenamedName{"UserDict", "IterableUserDict", "collections", "UserDict"},
    RenamedName{"UserDict", "UserDict", "collections", "UserDict"},
    RenamedName{"UserList", "UserList", "collections", "UserList"},
    RenamedName{"UserString", "UserString", "collections", "UserString"},
    RenamedName{"__builtin__", "basestring", "builtins", "str"},
    RenamedName{"__builtin__", "intern", "sys", "intern"},
    RenamedName{"__builtin__", "long", "builtins", "int"},
    RenamedName{"__builtin__", "reduce", "functools", "reduce"},
    RenamedName{"__builtin__", "unichr", "builtins", "chr"},
    RenamedName{"__builtin__", "unicode", "builtins", "str"},
    RenamedName{"__builtin__", "xrange", "builtins", "range"},
    RenamedName{"_multiprocessing", "Connection", "multiprocessing.connection", "Connection"},
    RenamedName{"_socket", "fromfd", "socket", "fromfd"},
    RenamedName{"exceptions", "StandardError", "builtins", "Exception"},
    RenamedName{"itertools", "ifilter", "builtins", "filter"},
    RenamedName{"itertools", "ifilterfalse", "itertools", "filterfalse"},
    RenamedName{"itertools", "imap", "builtins", "map"},
    RenamedName{"itertools", "izip", "builtins", "zip"},
    RenamedName{"itertools", "izip_longest", "itertools", "zip_longest"},
    RenamedName{"multiprocessing", "AuthenticationError", "multiprocessing.context", "AuthenticationError"},
    RenamedName{"multiprocessing", "BufferTooShort", "multiprocessing.context", "BufferTooShort"},
    RenamedName{"multiprocessing", "ProcessError", "multiprocessing.context", "ProcessError"},
    RenamedName{"multiprocessing", "TimeoutError", "multiprocessing.context", "TimeoutError"},
    RenamedName{"multiprocessing.forking", "Popen", "multiprocessing.popen_fork", "Popen"},
    RenamedName{"multiprocessing.process", "Process", "multiprocessing.context", "Process"},
    RenamedName{"socket", "_socketobject", "socket", "SocketType"},
    RenamedName{"urllib", "ContentTooShortError", "urllib.error", "ContentTooShortError"},
    RenamedName{"urllib", "getproxies", "urllib.request", "getproxies"},
    RenamedName{"urllib", "pathname2url", "urllib.request", "pathname2url"},
    RenamedName{"urllib", "quote", "urllib.parse", "quote"},
    RenamedName{"urllib", "quote_plus", "urllib.parse", "quote_plus"},
    RenamedName{"urllib", "unquote", "urllib.parse", "unquote"},
    RenamedName{"urllib", "unquote_plus", "urllib.parse", "unquote_plus"},
    RenamedName{"urllib", "url2pathname", "urllib.request", "url2pathname"},
    RenamedName{"urllib", "urlcleanup", "urllib.request", "urlcleanup"},
    RenamedName{"urllib", "urlencode", "urllib.parse", "urlencode"},
    RenamedName{"urllib", "urlopen", "urllib.request", "urlopen"},
    RenamedName{"urllib", "urlretrieve", "urllib.request", "urlretrieve"},
    RenamedName{"urllib2", "HTTPError", "urllib.error", "HTTPError"},
    RenamedName{"urllib2", "URLError", "urllib.error", "URLError"},
    RenamedName{"whichdb", "whichdb", "dbm", "whichdb"},
};

/// Exceptions of Python 2's module `exceptions`, which are builtins of the same name. Sorted.
constexpr std::array exceptions{
    std::string_view("ArithmeticError"),
    std::string_view("AssertionError"),
    std::string_view("AttributeError"),
    std::string_view("BaseException"),
    std::string_view("BufferError"),
    std::string_view("BytesWarning"),
    std::string_view("DeprecationWarning"),
    std::string_view("EOFError"),
    std::string_view("EnvironmentError"),
    std::string_view("Exception"),
    std::string_view("FloatingPointError"),
    std::string_view("FutureWarning"),
    std::string_view("GeneratorExit"),
    std::string_view("IOError"),
    std::string_view("ImportError"),
    std::string_view("ImportWarning"),
    std::string_view("IndentationError"),
    std::string_view("IndexError"),
    std::string_view("KeyError"),
    std::string_view("KeyboardInterrupt"),
    std::string_view("LookupError"),
    std::string_view("MemoryError"),
    std::string_view("NameError"),
    std::string_view("NotImplementedError"),
    std::string_view("OSError"),
    std::string_view("OverflowError"),
    std::string_view("PendingDeprecationWarning"),
    std::string_view("ReferenceError"),
    std::string_view("RuntimeError"),
    std::string_view("RuntimeWarning"),
    std::string_view("StopIteration"),
    std::string_view("SyntaxError"),
    std::string_view("SyntaxWarning"),
    std::string_view("SystemError"),
    std::string_view("SystemExit"),
    std::string_view("TabError"),
    std::string_view("TypeError"),
    std::string_view("UnboundLocalError"),
    std::string_view("UnicodeDecodeError"),
    std::string_view("UnicodeEncodeError"),
    std::string_view("UnicodeError"),
    std::string_view("UnicodeTranslateError"),
    std::string_view("UnicodeWarning"),
    std::string_view("UserWarning"),
    std::string_view("ValueError"),
    std::string_view("Warning"),
    std::string_view("ZeroDivisionError"),
};

/// IMPORT_MAPPING. Sorted.
constexpr std::array modules{
    RenamedModule{"BaseHTTPServer", "http.server"},
    RenamedModule{"CGIHTTPServer", "http.server"},
    RenamedModule{"ConfigParser", "configparser"},
    RenamedModule{"Cookie", "http.cookies"},
    RenamedModule{"Dialog", "tkinter.dialog"},
    RenamedModule{"DocXMLRPCServer", "xmlrpc.server"},
    RenamedModule{"FileDialog", "tkinter.filedialog"},
    RenamedModule{"HTMLParser", "html.parser"},
    RenamedModule{"Queue", "queue"},
    RenamedModule{"ScrolledText", "tkinter.scrolledtext"},
    RenamedModule{"SimpleDialog", "tkinter.simpledialog"},
    RenamedModule{"SimpleHTTPServer", "http.server"},
    RenamedModule{"SimpleXMLRPCServer", "xmlrpc.server"},
    RenamedModule{"SocketServer", "socketserver"},
    RenamedModule{"StringIO", "io"},
    RenamedModule{"Tix", "tkinter.tix"},
    RenamedModule{"Tkconstants", "tkinter.constants"},
    RenamedModule{"Tkdnd", "tkinter.dnd"},
    RenamedModule{"Tkinter", "tkinter"},
    RenamedModule{"UserDict", "collections"},
    RenamedModule{"UserList", "collections"},
    RenamedModule{"UserString", "collections"},
    RenamedModule{"__builtin__", "builtins"},
    RenamedModule{"_abcoll", "collections.abc"},
    RenamedModule{"_elementtree", "xml.etree.ElementTree"},
    RenamedModule{"_winreg", "winreg"},
    RenamedModule{"anydbm", "dbm"},
    RenamedModule{"cPickle", "pickle"},
    RenamedModule{"cStringIO", "io"},
    RenamedModule{"commands", "subprocess"},
    RenamedModule{"cookielib", "http.cookiejar"},
    RenamedModule{"copy_reg", "copyreg"},
    RenamedModule{"dbhash", "dbm.bsd"},
    RenamedModule{"dbm", "dbm.ndbm"},
    RenamedModule{"dumbdbm", "dbm.dumb"},
    RenamedModule{"dummy_thread", "_dummy_thread"},
    RenamedModule{"gdbm", "dbm.gnu"},
    RenamedModule{"htmlentitydefs", "html.entities"},
    RenamedModule{"httplib", "http.client"},
    RenamedModule{"markupbase", "_markupbase"},
    RenamedModule{"repr", "reprlib"},
    RenamedModule{"robotparser", "urllib.robotparser"},
    RenamedModule{"test.test_support", "test.support"},
    RenamedModule{"thread", "_thread"},
    RenamedModule{"tkColorChooser", "tkinter.colorchooser"},
    RenamedModule{"tkCommonDialog", "tkinter.commondialog"},
    RenamedModule{"tkFileDialog", "tkinter.filedialog"},
    RenamedModule{"tkFont", "tkinter.font"},
    RenamedModule{"tkMessageBox", "tkinter.messagebox"},
    RenamedModule{"tkSimpleDialog", "tkinter.simpledialog"},
    RenamedModule{"ttk", "tkinter.ttk"},
    RenamedModule{"urllib2", "urllib.request"},
    RenamedModule{"urlparse", "urllib.parse"},
    RenamedModule{"whichdb", "dbm"},
    RenamedModule{"xmlrpclib", "xmlrpc.client"},
};

/// Modules that moved in PyTorch, NumPy and Python 3, whatever the protocol. Sorted.
constexpr std::array moved{
    RenamedModule{"numpy.core.multiarray", "numpy._core.multiarray"},
    RenamedModule{"numpy.core.numeric", "numpy._core.numeric"},
    RenamedModule{"pathlib._local", "pathlib"},
    RenamedModule{"torch.tensor", "torch._tensor"},
};

constexpr auto key_of(const RenamedName& row) { return std::tie(row.module, row.name); }
constexpr auto key_of(const RenamedModule& row) { return std::tie(row.module); }
constexpr auto key_of(const std::string_view& name) { return std::tie(name); }
constexpr auto before = [](const auto& a, const auto& b) { return key_of(a) < key_of(b); };

static_assert(std::is_sorted(names.begin(), names.end(), before));
static_assert(std::is_sorted(exceptions.begin(), exceptions.end(), before));
static_assert(std::is_sorted(modules.begin(), modules.end(), before));
static_assert(std::is_sorted(moved.begin(), moved.end(), before));

/// The row with that key, or null.
template <class Row> const Row* find(const auto& table, const Row& key) {
    const auto row = std::lower_bound(table.begin(), table.end(), key, before);
    return row != table.end() && key_of(*row) == key_of(key) ? &*row : nullptr;
}

Global from_python2(const Global& global) {
    if (const auto* row = find(names, RenamedName{global.module, global.name, {}, {}}))
        return {row->new_module, row->new_name};
    if (global.module == "exceptions" && find(exceptions, global.name) != nullptr) return {"builtins", global.name};
    if (const auto* row = find(modules, RenamedModule{global.module, {}})) return {row->new_module, global.name};
    return global;
}

}  // namespace

PickleGraph::Global in_python3(const Global& global, unsigned protocol) {
    const Global named = protocol < first_of_python3 ? from_python2(global) : global;
    if (const auto* row = find(moved, RenamedModule{named.module, {}})) return {row->new_module, named.name};
    return named;
}

}  // namespace safemap::SAFEMAP_ABI
