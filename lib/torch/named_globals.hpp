// The globals that pickles name: which of them are known, which would run code, and a list of them.
#pragma once

#include "pickle/pickle.hpp"
#include "pickle/pickle_stream.hpp"

#include <safemap/state_tree.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// Whether values made with it are read, and not opaque: the functions and classes that torch.save names.
bool is_known(const PickleGraph::Global& global);
/// The same in an archive of TorchScript, whose own classes are known: of their objects the state is read.
bool is_known_in_script(const PickleGraph::Global& global);
/// Whether calling it would run code of the file's choice: os.system, builtins.eval and their kind.
bool runs_code(const PickleGraph::Global& global) noexcept;
/// Whether torch.storage._load_from_bytes, which loads any pickle it is given, is a value for others to call, as by
/// __setstate__; or whether what it loads is called. Where it is called itself, what it loads is looked at. Linear in
/// the pickle.
bool hands_on_loader(const PickleGraph& pickle);
/// Sentences about functions that run code: every call of the pickle, also of values that were dropped on the way, and
/// what was named for others to call.
std::vector<std::string> notes_of_calls(const PickleGraph& pickle, Allowance& allowance);

/// Collects the classes and functions that the pickles of a file name, for those who list them and for those who refuse
/// unknown ones. Holds the first ones only, so that its size does not grow with the file.
class NamedGlobals {
public:
    using Known = bool(const PickleGraph::Global&);
    static constexpr std::size_t most_listed = 16'384;

    /// If `strict`, refuse() throws.
    explicit NamedGlobals(bool strict = true) : strict_(strict) {}
    bool strict() const noexcept { return strict_; }

    /// Adds every global of a pickle, also of values that are dropped. `record` says which pickle it is.
    void add(const PickleGraph& pickle, std::string_view record, Known* known = is_known);
    /// Notes that a file inside a pickle could not be read: loading it may call anything.
    void add_unread() noexcept { unread_ = asks_for_code_ = true; }
    /// If strict, throws unknown_global where a pickle names any: those that run code first.
    void refuse() const;

    /// In the order of the pickles, each once for each record.
    const std::vector<NamedGlobal>& all() const noexcept { return all_; }
    /// Returns the sentence that counts the unknown ones that would be called, or nothing where there are none.
    std::optional<std::string> note() const;
    /// Returns whether loading the file with Python would call unknown functions, or hand on ones that run code. Counts
    /// what is not listed, too.
    bool asks_for_code() const noexcept { return asks_for_code_; }

private:
    /// The first unknown names, for the refusal.
    struct Names {
        std::vector<std::string> first = {};
        bool more = false;

        void add(const PickleGraph::Global& global);
        std::string text() const;
    };

    void add_one(const PickleGraph::Global& global, std::string_view record, bool known, bool called);

    bool strict_;
    bool unread_ = false;
    bool asks_for_code_ = false;
    std::optional<NamedGlobal> not_listed_ = {};  ///< an unknown one that would be called, and found no place in all_
    std::vector<NamedGlobal> all_ = {};
    std::unordered_map<std::string, std::size_t> places_ = {};  ///< in all_, by record, module and name
    Names unsafe_ = {};
    Names others_ = {};
};

/// For a stream of pickles: adds the globals of each to `globals`, as those of what it is, behind `prefix`; does
/// nothing where that is null.
PickleStream::Seen collecting(NamedGlobals* globals, std::string prefix = {});

}  // namespace safemap::SAFEMAP_ABI::torch
