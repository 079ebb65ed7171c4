// Collects the globals that pickles name, and decides which are known and which would run code.
#pragma once

#include "pickle/pickle.hpp"
#include "pickle/pickle_stream.hpp"
#include "pickle/zip.hpp"
#include "state/findings.hpp"
#include "torch/dangers.hpp"

#include <safemap/state_tree.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// Returns true if values made with the global are read, not opaque. True for the functions and classes that torch.save
/// names.
bool is_known(const PickleGraph::Global& global);
/// Returns true for what is_known() knows, and for classes of a TorchScript archive: the state of their objects is
/// read.
bool is_known_in_script(const PickleGraph::Global& global);
/// Returns true if calling the global would run code that the file chooses, as os.system and builtins.eval do: if it
/// is in the table of dangers.
bool runs_code(const PickleGraph::Global& global);
/// Returns true if torch.storage._load_from_bytes, which loads any pickle that it gets, is a value that other code may
/// call, for example through __setstate__; also true if the result of a call of it is called. A plain call of it does
/// not count, because safemap reads what it would load. Linear in the size of the pickle.
bool hands_on_loader(const PickleGraph& pickle);
/// Returns sentences about functions that run code: about every call of the pickle, even if the value is dropped later,
/// and about functions that are named for other code to call.
std::vector<std::string> notes_of_calls(const PickleGraph& pickle, Allowance& allowance);

/// Adds findings about the calls of a pickle and the globals that it names. `known` tells which are read as data.
void add_findings(const PickleGraph& pickle, std::string_view record,
                  const std::function<bool(const PickleGraph::Global&)>& known, state::FindingList& findings);

/// The classes and functions that the pickles of a file name, for callers that list them or refuse unknown ones. Holds
/// only the first ones, so that its size does not grow with the file.
class NamedGlobals {
public:
    using Known = bool(const PickleGraph::Global&);
    static constexpr std::size_t most_listed = 16'384;

    /// If `strict`, refuse() throws. What `also_known` knows is known too, in every pickle: classes that the caller
    /// reads itself.
    explicit NamedGlobals(bool strict = true, Known* also_known = nullptr) : strict_(strict), also_known_(also_known) {}
    bool strict() const noexcept { return strict_; }

    /// Adds every global of a pickle, even if its value is dropped later. `record` names the pickle.
    void add(const PickleGraph& pickle, std::string_view record, Known* known = is_known);
    /// Adds findings about pickles that readers skip: after the end of a pickle, and in records other than `read`. Does
    /// not list their globals.
    void examine(const std::shared_ptr<const Source>& source, Extent part, const std::string& record);
    void examine_records(const ZipDirectory& zip, const ZipRecord& read);
    /// Adds findings about a zip that begins with other bytes, which torch.load reads as a tar or as pickles. Throws
    /// unknown_global if strict.
    void examine_second_format(const RecordData& zip);
    /// Notes that a file inside the pickle `record` could not be read: loading it may call anything.
    void add_unread(std::string_view record);
    /// Throws unknown_global if strict and a pickle names unknown globals. The error lists globals that run code first.
    void refuse() const;
    /// Throws unsafe_call if a pickle names globals that run code, strict or not. The error lists them.
    void refuse_code() const;

    /// Returns the globals in the order of the pickles, each once per record.
    const std::vector<NamedGlobal>& all() const noexcept { return all_; }
    /// Returns a sentence that counts the unknown globals that would be called; nothing if no global would be.
    std::optional<std::string> note() const;
    /// Returns true if loading the file with Python would call unknown functions, or hand on functions that run code.
    /// Includes globals that are not listed.
    bool asks_for_code() const noexcept { return asks_for_code_; }
    /// Returns the findings about all pickles that were added.
    Findings findings() const { return findings_.findings(); }

private:
    /// The first unknown names, for the refusal.
    struct Names {
        std::vector<std::string> first = {};
        bool more = false;

        void add(const PickleGraph::Global& global);
        std::string text() const;
    };

    void add_one(const PickleGraph::Global& global, std::string_view record, bool known, bool called,
                 const Judgement& judged);

    bool strict_;
    Known* also_known_;
    bool unread_ = false;
    bool asks_for_code_ = false;
    state::FindingList findings_ = {};
    std::optional<NamedGlobal> not_listed_ = {};  ///< an unknown global that would be called, and did not fit into all_
    std::vector<NamedGlobal> all_ = {};
    std::unordered_map<std::string, std::size_t> places_ = {};  ///< index in all_, by record, module and name
    Names unsafe_ = {};
    Names others_ = {};
};

/// Returns a callback for a stream of pickles that adds the globals of each pickle to `globals`. The name of the record
/// is `prefix` and the description of the pickle. Returns an empty callback if `globals` is null.
PickleStream::Seen collecting(NamedGlobals* globals, std::string prefix = {});

}  // namespace safemap::SAFEMAP_ABI::torch
