// Decides which globals are known, which run code, and how a pickle would use the globals that it names. From the top:
//
//   tables        known globals that no other table has, and globals that run code
//   Uses          the nodes of a pickle that are values of other nodes, or are called when the pickle is loaded
//   questions     is_known, runs_code, hands_on_loader: about one global, or about the whole pickle
//   notes         sentences about functions that run code
//   NamedGlobals  the list for callers that show the globals, and the refusal for callers that allow no unknown ones
//
// The functions that are read have their own tables, which is_known() asks: tensor_calls.cpp, containers.cpp,
// python_values.cpp. The reference for what torch.save writes is torch/_utils.py, torch/_tensor.py and
// torch/storage.py, 2.13. Tested by tests/torch/globals_test.cpp.
#include "torch/named_globals.hpp"

#include "base/text.hpp"
#include "pickle/words.hpp"
#include "torch/containers.hpp"
#include "torch/dangers.hpp"
#include "torch/examine.hpp"
#include "torch/globals.hpp"
#include "torch/judge_pickle.hpp"
#include "torch/python_values.hpp"
#include "torch/storage_id.hpp"
#include "torch/storage_types.hpp"
#include "torch/tensor_calls.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/dtype.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Global = PickleGraph::Global;

/// Most names in an error; a file may have millions.
constexpr std::size_t most_named = 32;
/// Most notes about functions that run code; each function has its own note.
constexpr std::size_t most_calls_noted = 16;

/// Known globals other than the functions that are read, which have their own tables, the dtypes, the storages, and the
/// tensor classes of old files.
constexpr auto other_known = rows_of<1, 21>(R"(builtins.bool builtins.float builtins.int builtins.str numpy.dtype
    numpy.ndarray numpy._core.multiarray._reconstruct numpy._core.multiarray.scalar numpy._core.numeric._frombuffer
    torch.Tensor torch.per_channel_affine torch.per_channel_affine_float_qparams torch.per_channel_symmetric
    torch.per_tensor_affine torch.per_tensor_symmetric torch.autograd.variable.Variable
    torch._dynamo.decorators._DimRange torch._tensor.Tensor torch.nested._internal.nested_tensor.NestedTensor
    torch.nested._internal.nested_tensor._rebuild_njt torch.storage._load_from_bytes)");

bool is_any(const auto& rows, std::string_view one) {
    return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row[0] == one; });
}

/// Functions that call their first argument, or make an object of that class.
constexpr auto calls_first = rows_of<1, 5>(R"(copyreg.__newobj__ copyreg.__newobj_ex__ copyreg._reconstructor
    numpy._core.multiarray._reconstruct torch._utils._rebuild_wrapper_subclass)");
/// Functions that make a tensor of a subclass. Their arguments are (function, class, the function's arguments, state).
/// The class may have a __setstate__.
constexpr auto calls_two = rows_of<1, 2>(R"(torch._tensor._rebuild_from_type torch._tensor._rebuild_from_type_v2)");
/// Functions whose fourth argument is the state of the object that they make.
constexpr auto sets_state = rows_of<1, 3>(R"(torch._tensor._rebuild_from_type torch._tensor._rebuild_from_type_v2
    torch._utils._rebuild_parameter_with_state)");

/// Attributes with a special effect when they are set: unpickling or torch calls their value, or goes on with another
/// class.
constexpr auto called_attributes = rows_of<1, 11>(R"(__class__ __dict__ __setstate__ add append as_subclass detach
    extend stride to untyped_storage)");

/// The nodes of a pickle that are values of other nodes, or are called.
class Uses {
public:
    explicit Uses(const PickleGraph& pickle)
        : pickle_(pickle),
          used_(pickle.size()),
          called_(pickle.size()),
          searched_(pickle.size()),
          set_(pickle.size()),
          roles_(pickle.size()) {
        if (pickle.root() != PickleGraph::nothing) used_[pickle.root()] = true;  // nothing: a damaged pickle
        for (Id id = 0; id < pickle.size(); ++id) add(id);
    }
    bool used(PickleGraph::Id id) const { return used_[id]; }
    bool called(PickleGraph::Id id) const { return called_[id]; }

private:
    using Id = PickleGraph::Id;
    using Kind = PickleGraph::Kind;
    enum Role : unsigned { asked = 1, calls_one = 2, calls_both = 4, has_state = 8 };

    void add(Id id) {
        use(pickle_.nodes_in(id));
        if (pickle_.kind(id) == Kind::persistent) used_[pickle_.persistent(id)] = true;
        if (pickle_.kind(id) != Kind::call) return;
        const PickleGraph::Call call = pickle_.call(id);
        used_[call.callee] = true;
        use(call.states);
        use(call.items);
        use(call.appends);
        add_call(call.callee, call.arguments);
        if (call.states.empty()) return;
        const Id function = class_of(pickle_, call.callee);
        if (pickle_.kind(function) != Kind::global || !is_known(pickle_.global(function))) return;
        for (const Id state : call.states) add_state(state);
    }
    void use(std::span<const Id> ids) {
        for (const Id id : ids) used_[id] = true;
    }

    /// Marks a function as called. If the function calls its arguments, marks these too.
    void add_call(Id callee, Id arguments) {
        const Id function = class_of(pickle_, callee);
        add_called(function);
        if (pickle_.kind(function) != Kind::global) return add_all(arguments);
        const auto given = pickle_.items(arguments);
        const unsigned does = roles(function);
        if (!given.empty() && (does & calls_one) != 0) add_called(class_of(pickle_, given[0]));
        if (given.size() > 3 && (does & has_state) != 0) add_state(given[3]);
        if ((does & calls_both) == 0) return;
        if (pickle_.kind(arguments) != Kind::tuple || given.size() < 3) return add_all(arguments);
        add_called(class_of(pickle_, given[1]));
        const Id inner = class_of(pickle_, given[0]);
        add_called(inner);
        // An inner function that calls its own arguments: torch.save writes nothing like this.
        if (pickle_.kind(inner) != Kind::global || (roles(inner) & (calls_one | calls_both)) != 0) add_all(given[2]);
    }
    void add_called(Id id) {
        called_[id] = true;
        if (pickle_.kind(id) != Kind::global) add_all(id);
    }

    /// Adds the state of an object: its attributes, or a pair of the attributes in its dictionary and those in its
    /// slots.
    void add_state(Id state) {
        const Kind kind = pickle_.kind(state);
        if (kind == Kind::call || kind == Kind::persistent) return add_all(state);
        if (kind == Kind::dict) return add_attributes(state);
        const auto parts = pickle_.nodes_in(state);
        if (kind != Kind::tuple || parts.size() != 2) return;
        for (const Id part : parts)
            if (pickle_.kind(part) == Kind::dict) add_attributes(part);
    }
    void add_attributes(Id dict) {
        if (set_[dict]) return;  // many objects may share it
        set_[dict] = true;
        const auto items = pickle_.items(dict);
        for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
            const Kind key = pickle_.kind(items[i]);
            const bool hidden = key == Kind::call || key == Kind::persistent;
            if (hidden || (key == Kind::text && is_any(called_attributes, pickle_.text(items[i]))))
                add_called(class_of(pickle_, items[i + 1]));
        }
    }

    /// Marks all nodes that can be reached from `root` as called. A function need not be a plain name: it may be a
    /// persistent id inside another, or the result of a call. Any name in it may be the one that is called, so all are
    /// marked. Each node is searched once, so cycles end.
    void add_all(Id root) {
        std::vector<Id> open;
        const auto search = [&](Id id) {
            if (searched_[id]) return;
            searched_[id] = true;
            open.push_back(id);
        };
        const auto search_all = [&](std::span<const Id> ids) { std::for_each(ids.begin(), ids.end(), search); };
        search(root);
        while (!open.empty()) {
            const Id id = open.back();
            open.pop_back();
            called_[id] = true;
            search_all(pickle_.nodes_in(id));
            if (pickle_.kind(id) == Kind::persistent) search(pickle_.persistent(id));
            if (pickle_.kind(id) != Kind::call) continue;
            const PickleGraph::Call call = pickle_.call(id);
            search(call.callee);
            search(call.arguments);
            if (call.keywords != PickleGraph::nothing) search(call.keywords);
            search_all(call.states);
            search_all(call.items);
            search_all(call.appends);
        }
    }

    /// Returns the roles of a function, bits of Role. Its name is compared with the tables once, not for each call.
    unsigned roles(Id function) {
        std::uint8_t& known = roles_[function];
        if (known == 0) {
            known = static_cast<std::uint8_t>(asked | (is_one_of(calls_first, function) ? calls_one : 0U) |
                                              (is_one_of(calls_two, function) ? calls_both : 0U) |
                                              (is_one_of(sets_state, function) ? has_state : 0U));
        }
        return known;
    }
    bool is_one_of(const auto& rows, Id function) const {
        return std::any_of(rows.begin(), rows.end(),
                           [&](const auto& row) { return is_global(pickle_, function, row[0]); });
    }

    const PickleGraph& pickle_;
    std::vector<bool> used_;
    std::vector<bool> called_;
    std::vector<bool> searched_;
    std::vector<bool> set_;            ///< dictionaries of attributes that were added
    std::vector<std::uint8_t> roles_;  ///< by function: bits of Role, or 0 if not asked for yet
};

std::string_view before_dot(std::string_view dotted) { return dotted.substr(0, dotted.find('.')); }

bool is_unsafe(const NamedGlobal& named) { return named.severity == Verdict::runs_code; }

}  // namespace

bool is_known(const Global& global) {
    if (const std::string name = dotted(global); is_named(global, name))
        if (is_tensor_function(name) || is_container(name) || is_value_function(name) || is_any(other_known, name))
            return true;
    if (global.module == "torch" && dtype_from_torch(global.name)) return true;
    if (global.module == "torch.storage") return storage_type(global.name).has_value();
    if (global.module != "torch" && global.module != "torch.cuda") return false;
    return storage_type(global.name) || tensor_class_dtype(global.name);
}

bool is_known_in_script(const Global& global) {
    const bool is_function = global.name.find('.') == global.name.npos && !is_dunder(global.name);
    return before_dot(global.module) == "__torch__" || (global.module == "torch.jit._pickle" && is_function) ||
           is_known(global);
}

bool runs_code(const Global& global) { return !is_known(global) && judge(global).severity == Verdict::runs_code; }

bool hands_on_loader(const PickleGraph& pickle) {
    if (!names_global(pickle, load_from_bytes)) return false;
    const auto is_loader = [&](PickleGraph::Id id) { return is_global(pickle, id, load_from_bytes); };
    const auto any_of = [&](std::span<const PickleGraph::Id> ids) {
        return std::any_of(ids.begin(), ids.end(), is_loader);
    };
    std::vector<PickleGraph::Id> loaded;
    for (PickleGraph::Id id = 0; id < pickle.size(); ++id) {
        if (any_of(pickle.nodes_in(id))) return true;
        if (pickle.kind(id) != PickleGraph::Kind::call) continue;
        const PickleGraph::Call call = pickle.call(id);
        if (is_loader(call.callee)) loaded.push_back(id);
        if (any_of(call.states) || any_of(call.items) || any_of(call.appends)) return true;
    }
    if (loaded.empty()) return false;
    const Uses uses(pickle);
    return std::any_of(loaded.begin(), loaded.end(), [&](PickleGraph::Id id) { return uses.called(id); });
}

std::vector<std::string> notes_of_calls(const PickleGraph& pickle, Allowance& allowance) {
    std::map<std::string, std::size_t> calls;
    const auto globals = pickle.globals();
    const bool any_runs = std::any_of(globals.begin(), globals.end(), runs_code);
    std::vector<std::optional<bool>> runs(any_runs ? pickle.size() : 0);  // by node
    const auto node_runs = [&](PickleGraph::Id id) {
        if (!runs[id]) runs[id] = runs_code(pickle.global(id));
        return *runs[id];
    };
    for (PickleGraph::Id id = 0; any_runs && id < pickle.size(); ++id) {
        const bool called = pickle.kind(id) == PickleGraph::Kind::call;
        const PickleGraph::Id named = called ? class_of(pickle, pickle.call(id).callee) : id;
        if (pickle.kind(named) != PickleGraph::Kind::global || !node_runs(named)) continue;
        std::string name = dotted(pickle.global(named));
        // A getattr that is not called has spelled the name of a nested class.
        if (!called && name == "builtins.getattr") continue;
        const auto [known, fresh] = calls.try_emplace(std::move(name), 0);
        if (fresh) allowance.spend(fault_cost + 2 * known->first.size());
        known->second += called ? 1 : 0;
    }
    if (hands_on_loader(pickle)) calls.try_emplace(std::string(load_from_bytes), 0);
    std::vector<std::string> notes;
    for (const auto& [name, count] : calls) {
        if (notes.size() == most_calls_noted) {
            notes.push_back("the pickle names " + std::to_string(calls.size() - most_calls_noted) +
                            " more functions that run code; none was called; inspect --globals lists "
                            "them");
            break;
        }
        const std::string asks = count == 0 ? "names " : "asks to call ";
        notes.push_back("the pickle " + asks + excerpt(name) +
                        (count < 2 ? "" : " (" + std::to_string(count) + " times)") +
                        ", which was not called: such a file is made to run code on the machine that loads it");
    }
    return notes;
}

namespace {

/// Returns the judgement of each global node. The function that loads pickles is data only where it is called.
PickleJudgement judged_globals(const PickleGraph& pickle, const std::function<bool(const Global&)>& known) {
    PickleJudgement judged = judge_pickle(pickle, known);
    if (!hands_on_loader(pickle)) return judged;
    for (auto& [id, judgement] : judged.globals)
        if (is_global(pickle, id, load_from_bytes)) judgement = judge(pickle.global(id));
    return judged;
}

void add_calls(PickleJudgement& judged, std::string_view record, state::FindingList& findings) {
    for (Finding& finding : judged.calls) {
        finding.record = record;
        findings.add(std::move(finding));
    }
}

Finding finding_of(const Global& global, const Judgement& judged, std::string_view record) {
    return {dotted(global), std::string(judged.why), judged.severity, std::string(record)};
}

}  // namespace

void add_findings(const PickleGraph& pickle, std::string_view record, const std::function<bool(const Global&)>& known,
                  state::FindingList& findings) {
    PickleJudgement judged = judged_globals(pickle, known);
    for (const auto& [id, judgement] : judged.globals)
        if (judgement.severity != Verdict::ok) findings.add(finding_of(pickle.global(id), judgement, record));
    add_calls(judged, record, findings);
}

void NamedGlobals::add(const PickleGraph& pickle, std::string_view record, Known* known) {
    const Uses uses(pickle);
    const bool loader_is_value = hands_on_loader(pickle);
    const auto is_read = [&](const Global& global) {
        return known(global) || (also_known_ != nullptr && also_known_(global));
    };
    PickleJudgement judged = judged_globals(pickle, is_read);
    for (const auto& [id, judgement] : judged.globals) {
        // A getattr that is not used has spelled the name of a nested class, which is a global of its own.
        if (!uses.used(id) && is_global(pickle, id, "builtins.getattr")) continue;
        const Global global = pickle.global(id);
        const bool loader = is_global(pickle, id, load_from_bytes);
        add_one(global, record, is_read(global) && !(loader && loader_is_value), uses.called(id), judgement);
    }
    add_calls(judged, record, findings_);
    examine_inside(pickle, record, findings_);
}

void NamedGlobals::examine(const std::shared_ptr<const Source>& source, Extent part, const std::string& record) {
    torch::examine(source, part, record, findings_);
}

void NamedGlobals::examine_records(const ZipDirectory& zip, const ZipRecord& read) {
    torch::examine_records(zip, read, findings_);
}

void NamedGlobals::examine_second_format(const RecordData& zip) {
    if (strict_)
        throw Error(Errc::unknown_global,
                    "the file ends as a zip, but does not begin as one: torch.load reads it from its first byte, as a "
                    "tar or pickles that may call any function; expected a file of one format")
            .with_hint("without --strict-globals, the zip is read, and the verdict counts both");
    torch::examine(zip.source, zip.extent, "the file as torch.load reads it", findings_);
    asks_for_code_ = asks_for_code_ || findings_.findings().verdict == Verdict::runs_code;
}

void NamedGlobals::add_unread(std::string_view record) {
    unread_ = asks_for_code_ = true;
    findings_.add({.name = "a file inside the pickle", .why = "cannot be read", .record = std::string(record)});
}

void NamedGlobals::add_one(const Global& global, std::string_view record, bool known, bool called,
                           const Judgement& judged) {
    const bool unsafe = judged.severity == Verdict::runs_code;
    if (!known) (unsafe ? unsafe_ : others_).add(global);
    asks_for_code_ = asks_for_code_ || unsafe || (called && !known);
    if (judged.severity != Verdict::ok) findings_.add(finding_of(global, judged, record));
    std::string key(record);
    key.append(1, '\0').append(global.module).append(1, '\0').append(global.name);
    const auto found = places_.find(key);
    if (found != places_.end()) {
        NamedGlobal& named = all_[found->second];
        named.called = named.called || called;
        named.known = named.known && known;
        if (judged.severity > named.severity) {
            named.severity = judged.severity;
            named.why = judged.why;
        }
        return;
    }
    NamedGlobal named{.module = std::string(global.module),
                      .name = std::string(global.name),
                      .record = std::string(record),
                      .known = known,
                      .called = called,
                      .severity = judged.severity,
                      .why = std::string(judged.why)};
    if (all_.size() == most_listed) {
        if (!known && called && (!not_listed_ || (unsafe && !is_unsafe(*not_listed_)))) not_listed_ = std::move(named);
        return;
    }
    places_.emplace(std::move(key), all_.size());
    all_.push_back(std::move(named));
}

void NamedGlobals::refuse() const {
    if (!strict_) return;
    std::string message;
    if (!unsafe_.first.empty()) message = "globals that run code: " + unsafe_.text();
    if (!others_.first.empty()) message += (message.empty() ? "" : "; ") + ("unknown globals: " + others_.text());
    if (message.empty()) return;
    throw Error(Errc::unknown_global, std::move(message))
        .with_hint("without --strict-globals they become opaque objects, and nothing is called");
}

void NamedGlobals::refuse_code() const {
    if (unsafe_.first.empty()) return;
    throw Error(Errc::unsafe_call, "the pickle names functions that run code: " + unsafe_.text())
        .with_hint("nothing was called; such a file is made to run code on the machine that loads it");
}

std::optional<std::string> NamedGlobals::note() const {
    std::set<std::string> names;
    const NamedGlobal* first = nullptr;
    const auto count = [&](const NamedGlobal& named) {
        if (named.severity < Verdict::unknown || !named.called) return;
        names.insert(dotted({named.module, named.name}));
        if (first == nullptr || (is_unsafe(named) && !is_unsafe(*first))) first = &named;
    };
    std::for_each(all_.begin(), all_.end(), count);
    if (not_listed_) count(*not_listed_);
    if (first == nullptr && !unread_) return std::nullopt;
    if (first == nullptr)
        return "a file inside the pickle cannot be read, and loading it may call anything; --strict-globals refuses "
               "the file";
    const std::string name = excerpt(dotted({first->module, first->name}));
    const std::string at_least = not_listed_ || unread_ ? "at least " : "";
    const std::string called =
        names.size() == 1 && at_least.empty()
            ? "an unknown class or function, " + name
            : at_least + counted(names.size(), "unknown class or function", "unknown classes and functions") +
                  ", the first is " + name;
    return "unpickling would call " + called +
           "; nothing was called; inspect --globals lists what the file names, --strict-globals refuses the file";
}

PickleStream::Seen collecting(NamedGlobals* globals, std::string prefix) {
    if (globals == nullptr) return {};
    return [globals, prefix = std::move(prefix)](const PickleGraph& pickle, std::string_view what) {
        globals->add(pickle, prefix + std::string(what));
    };
}

void NamedGlobals::Names::add(const Global& global) {
    std::string name = excerpt(dotted(global));
    // Python's os has the functions of these modules; their pickles name the module of the system.
    if (global.module == "posix" || global.module == "nt") name += " (os." + excerpt(global.name) + ')';
    if (std::find(first.begin(), first.end(), name) != first.end()) return;
    if (first.size() < most_named) first.push_back(std::move(name));
    else more = true;
}

std::string NamedGlobals::Names::text() const {
    std::string all;
    for (const std::string& name : first) all += (all.empty() ? "" : ", ") + name;
    return more ? all + " and more" : all;
}

}  // namespace safemap::SAFEMAP_ABI::torch
