// Looks at every call of a pickle, as Python would make it. From the top:
//
//   tables   functions that call their arguments, and attributes that unpickling and torch call
//   UsesOf   how each global is used: as a value, by calls without arguments of the file, by calls with them
//   Judge    the calls: hidden functions, states, functools.partial
//
// Tested by tests/torch/verdict_test.cpp.
#include "torch/judge_pickle.hpp"

#include "pickle/words.hpp"
#include "torch/globals.hpp"
#include "torch/harmless.hpp"
#include "torch/named_globals.hpp"
#include "torch/storage_id.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

constexpr std::string_view sets_called =
    "sets an attribute that unpickling or torch calls, which hides which function it calls";
constexpr std::string_view result_called = "makes a function that is called, which hides which function it calls";
constexpr std::string_view class_changed =
    "is given attributes as a class or module: changes attributes of other objects";
constexpr std::string_view constructed =
    "is a harmless class, but its constructor is called with arguments of the file";
constexpr std::string_view handed_on =
    "is a class whose constructor evaluates text or loads files, and may be called by what it is handed to";
constexpr std::string_view gets_object = "gets an object of a library, whose methods it may call";
constexpr std::string_view method_called = "is a function in a harmless class, and is called";

/// A function that calls one of its arguments.
struct Caller {
    enum class Argument : std::uint8_t { made, called, state, base } as;
    std::size_t at;
    std::string_view names;
};
/// `made`: an object without its constructor; `base`: the constructor of a base class that is not Python's own.
constexpr Caller callers[] = {
    {Caller::Argument::made, 0, R"(copyreg.__newobj__ copyreg.__newobj_ex__ copyreg._reconstructor
        numpy._core.multiarray._reconstruct torch._utils._rebuild_wrapper_subclass numpy.ma.core._mareconstruct
        pandas.core.indexes.base._new_Index numpy.random._pickle.__bit_generator_ctor
        numpy.random.bit_generator.__pyx_unpickle_SeedSequence)"},
    {Caller::Argument::made, 1, "torch._tensor._rebuild_from_type torch._tensor._rebuild_from_type_v2"},
    {Caller::Argument::called, 0, R"(torch._tensor._rebuild_from_type torch._tensor._rebuild_from_type_v2
        functools.partial collections.defaultdict)"},
    {Caller::Argument::called, 1, R"(numpy.random._pickle.__generator_ctor
        numpy.random._pickle.__randomstate_ctor)"},
    {Caller::Argument::base, 1, "copyreg._reconstructor"},
    {Caller::Argument::state, 3, R"(torch._tensor._rebuild_from_type torch._tensor._rebuild_from_type_v2
        torch._utils._rebuild_parameter_with_state)"},
};

/// Methods that unpickling, torch and NumPy call on objects that a pickle hands them. An object may have attributes of
/// these names instead.
constexpr std::string_view called_methods = R"(append extend add update keys items detach as_subclass stride to cpu
    untyped_storage requires_grad_ set_ view numel dim copy_ fileno read readline readinto seek tell data_ptr pin_memory
    _untyped_storage clone)";
/// Attributes between double underscores that are not called.
constexpr std::string_view idle_dunders = "__orig_class__ __wrapped__ __objclass__ __origin__ __args__ __parameters__";

class Judge {
public:
    Judge(const PickleGraph& pickle, const std::function<bool(const PickleGraph::Global&)>& is_data)
        : pickle_(pickle),
          is_data_(is_data),
          uses_(pickle.size()),
          roles_(pickle.size()),
          seen_(pickle.size()),
          is_arguments_(pickle.size()) {}

    PickleJudgement run() {
        if (pickle_.root() != PickleGraph::nothing) use(pickle_.root(), value);
        for (Id id = 0; id < pickle_.size(); ++id)
            if (pickle_.kind(id) == Kind::call) is_arguments_[pickle_.call(id).arguments] = true;
        for (Id id = 0; id < pickle_.size(); ++id) look_at(id);
        for (Id id = 0; id < pickle_.size(); ++id)
            if (pickle_.kind(id) == Kind::global) out_.globals.emplace_back(id, judged(id));
        return std::move(out_);
    }

private:
    using Id = PickleGraph::Id;
    using Kind = PickleGraph::Kind;
    using Call = PickleGraph::Call;
    using Argument = Caller::Argument;
    enum Bit : std::uint8_t { value = 1, empty = 2, with_arguments = 4, excused = 8, as_key = 16 };
    static constexpr std::uint8_t asked = 0x80;

    void use(Id id, Bit bit) { uses_[id] = static_cast<std::uint8_t>(uses_[id] | bit); }
    void use_all(std::span<const Id> ids) {
        for (const Id id : ids) use(id, value);
    }

    void use_pairs(std::span<const Id> items) {
        for (std::size_t i = 0; i < items.size(); ++i) use(items[i], i % 2 == 0 ? as_key : value);
    }

    void look_at(Id id) {
        const auto items = pickle_.nodes_in(id);
        const bool is_dict = pickle_.kind(id) == Kind::dict;
        if (is_dict) use_pairs(items);
        else if (!is_arguments_[id]) use_all(items);
        switch (pickle_.kind(id)) {
            case Kind::dict: return look_at_pairs(items);
            case Kind::list:
            case Kind::tuple: return look_at_pair(items);
            case Kind::persistent: return use(pickle_.persistent(id), value);
            case Kind::call: return look_at_call(pickle_.call(id));
            default: return;
        }
    }

    // Attributes.

    bool is_function(Id id) const {
        if (pickle_.kind(id) == Kind::persistent) return class_of(pickle_, id) != id;
        if (pickle_.kind(id) == Kind::global)
            return !is_data_(pickle_.global(id)) || is_global(pickle_, id, load_from_bytes);
        return pickle_.kind(id) == Kind::call;
    }
    /// Returns true if an object has an attribute of this name that something may call.
    bool is_called_attribute(Id key, Id of) const {
        static const WordSet methods = words_of(called_methods);
        static const WordSet idle = words_of(idle_dunders);
        if (pickle_.kind(key) != Kind::text || !is_function(of)) return false;
        const std::string_view text = pickle_.text(key);
        if (is_dunder(text)) return !idle.contains(text) && !makes_data(of);
        const bool makes_object = pickle_.kind(of) == Kind::call && !is_call_of(pickle_, of, "functools.partial");
        return !makes_object && methods.contains(text);
    }
    /// Returns true for a call of a class that is read as data, such as a list.
    bool makes_data(Id id) const {
        if (pickle_.kind(id) != Kind::call) return false;
        const Id function = class_of(pickle_, pickle_.call(id).callee);
        return pickle_.kind(function) == Kind::global && is_data_(pickle_.global(function)) &&
               !is_global(pickle_, function, load_from_bytes);
    }
    void look_at_pairs(std::span<const Id> items) {
        for (std::size_t i = 0; i + 1 < items.size(); i += 2)
            if (is_called_attribute(items[i], items[i + 1])) add_finding(items[i + 1], sets_called);
    }
    void look_at_pair(std::span<const Id> items) {
        if (items.size() == 2) look_at_pairs(items);
    }
    /// Looks at the state of an object, whose attributes may have names that the pickle computes.
    void look_at_state(Id state) {
        const Kind kind = pickle_.kind(state);
        if (kind == Kind::dict) return look_at_attributes(state);
        if (kind != Kind::tuple || pickle_.nodes_in(state).size() != 2) return;
        for (const Id part : pickle_.nodes_in(state))
            if (pickle_.kind(part) == Kind::dict) look_at_attributes(part);
    }
    void look_at_attributes(Id dict) {
        if (seen_[dict]) return;  // many objects may share it
        seen_[dict] = true;
        const auto items = pickle_.nodes_in(dict);
        for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
            const Kind key = pickle_.kind(items[i]);
            if ((key == Kind::call || key == Kind::persistent) && is_function(items[i + 1]) &&
                !makes_data(items[i + 1]))
                add_finding(items[i + 1], sets_called);
        }
    }

    // Calls.

    void look_at_call(const Call& call) {
        use(call.arguments, value);
        if (call.keywords != PickleGraph::nothing) use(call.keywords, value);
        use_all(call.states);
        use_pairs(call.items);
        use_all(call.appends);
        look_at_pairs(call.items);
        for (const Id state : call.states) look_at_state(state);
        const Id function = class_of(pickle_, call.callee);
        use_arguments(function, call.arguments);
        if (pickle_.kind(function) != Kind::global) return add_finding(call.callee, result_called);
        look_at_handed(function, call);
        if (call.of_class) {
            use(function, value);
            if (!pickle_.global(function).module.starts_with("__torch__")) add_finding(function, class_changed);
            return;
        }
        const bool no_arguments = pickle_.items(call.arguments).empty() && call.keywords == PickleGraph::nothing;
        if (has_own_state(call) && is_project_class(pickle_.global(function))) use(function, with_arguments);
        use(function, is_excused(function, call) ? excused : !call.constructs || no_arguments ? empty : bit_of(call));
        follow(function, call.arguments, !call.states.empty());
    }
    /// Returns true if an object gets another state than its attributes, which only its own class can read.
    bool has_own_state(const Call& call) const {
        return std::any_of(call.states.begin(), call.states.end(), [this](Id state) {
            const bool is_pair = pickle_.kind(state) == Kind::tuple && pickle_.nodes_in(state).size() == 2;
            return pickle_.kind(state) != Kind::dict && !is_pair;
        });
    }
    /// Marks the arguments of a call as values, but not a class that only gives the type of an object.
    void use_arguments(Id function, Id arguments) {
        const auto given = pickle_.items(arguments);
        const bool any_global = pickle_.kind(function) == Kind::global;
        for (std::size_t at = 0; at < given.size(); ++at) {
            const bool type = any_global && is_followed(function, at, Argument::made);
            use(given[at], type ? as_key : value);
        }
    }
    /// Returns true if follow() looks at the argument of a function at that place.
    bool is_followed(Id function, std::size_t at, std::optional<Argument> as = std::nullopt) {
        const unsigned known = roles(function);
        for (std::size_t i = 0; i < std::size(callers); ++i)
            if ((known & (1U << i)) != 0 && callers[i].at == at && (!as || callers[i].as == *as)) return true;
        return false;
    }

    // Objects of libraries, which are handed to functions that may call their methods.

    const Judgement& name_of(Id global) {
        const auto [known, fresh] = names_.try_emplace(global);
        if (fresh)
            known->second =
                is_data_(pickle_.global(global)) ? Judgement{Verdict::ok, {}} : judge(pickle_.global(global));
        return known->second;
    }
    /// Returns true for an object of a harmless class whose methods may call what the object holds: a DataLoader.
    bool is_library_object(Id id) {
        if (pickle_.kind(id) != Kind::call) return false;
        const PickleGraph::Call call = pickle_.call(id);
        Id function = class_of(pickle_, call.callee);
        if (pickle_.kind(function) != Kind::global) return false;
        const auto given = pickle_.items(call.arguments);
        if ((roles(function) & 1U) != 0 && !given.empty()) function = class_of(pickle_, given[0]);
        if (pickle_.kind(function) != Kind::global) return false;
        const Judgement& named = name_of(function);
        return named.severity == Verdict::needs_classes && named.use != Use::any;
    }
    void look_at_handed(Id function, const Call& call) {
        const auto any_object = [this](std::span<const Id> ids) {
            return std::any_of(ids.begin(), ids.end(), [this](Id id) { return is_library_object(id); });
        };
        bool handed = any_object(call.states);
        const auto given = pickle_.items(call.arguments);
        const Judgement& named = name_of(function);
        const bool harmless = named.severity == Verdict::ok || named.severity == Verdict::needs_classes;
        if (!harmless || named.use != Use::any || pickle_.global(function).module.starts_with("pandas.")) {
            if (handed) add_handed(function);
            return;
        }
        for (std::size_t at = 0; at < given.size(); ++at) {
            handed = handed || (!is_followed(function, at) && is_library_object(given[at]));
            handed = handed || (goes_over_pairs(function) && any_object(pickle_.nodes_in(given[at])));
        }
        if (!handed && goes_deep(function))
            handed = holds_object(call.arguments) ||
                     std::any_of(call.states.begin(), call.states.end(), [this](Id id) { return holds_object(id); });
        if (handed) add_handed(function);
    }
    void add_handed(Id function) {
        Finding finding{dotted(pickle_.global(function)), std::string(gets_object), Verdict::unknown, {}};
        if (out_.calls.size() < Findings::most_listed) out_.calls.push_back(std::move(finding));
    }
    bool goes_over_pairs(Id function) const {
        const PickleGraph::Global global = pickle_.global(function);
        return (global.module == "builtins" && global.name == "dict") ||
               (global.module == "collections" && (global.name == "OrderedDict" || global.name == "Counter"));
    }
    /// Returns true for classes that read what their arguments and states hold.
    bool goes_deep(Id function) const {
        constexpr std::string_view modules[] = {"numpy.random", "random",    "pandas",   "scipy", "sklearn",
                                                "decimal",      "fractions", "datetime", "re",    "pathlib",
                                                "uuid",         "io",        "_io"};
        const std::string_view module = pickle_.global(function).module;
        return std::any_of(std::begin(modules), std::end(modules), [module](std::string_view each) {
            return module.starts_with(each) && (module.size() == each.size() || module[each.size()] == '.');
        });
    }
    /// Returns true if a library object is in a value, at any depth.
    bool holds_object(Id id) {
        if (holds_.empty()) find_holders();
        return holds_[id];
    }
    /// Values that are nested forwards and backwards in turn take several passes. After the last one, anything may hold
    /// an object.
    void find_holders() {
        constexpr int most_passes = 8;
        holds_.resize(pickle_.size());
        bool changed = true;
        for (int pass = 0; changed && pass < most_passes; ++pass) {
            changed = false;
            for (Id id = static_cast<Id>(pickle_.size()); id-- > 0;) {
                if (holds_[id] || !holds_one(id)) continue;
                holds_[id] = changed = true;
            }
        }
        if (changed) holds_.assign(pickle_.size(), true);
    }
    bool holds_one(Id id) {
        const auto any = [this](std::span<const Id> ids) {
            return std::any_of(ids.begin(), ids.end(), [this](Id each) { return holds_[each]; });
        };
        if (any(pickle_.nodes_in(id))) return true;
        if (pickle_.kind(id) != Kind::call) return false;
        const PickleGraph::Call call = pickle_.call(id);
        return is_library_object(id) || holds_[call.arguments] || any(call.states) || any(call.items) ||
               any(call.appends);
    }

    /// Returns with_arguments, or `empty` for a call that looks up a member of an enumeration by its value.
    Bit bit_of(const Call& call) const {
        const auto given = pickle_.items(call.arguments);
        if (given.size() != 1 || call.keywords != PickleGraph::nothing) return with_arguments;
        const Kind kind = pickle_.kind(given[0]);
        const Id callee = class_of(pickle_, call.callee);
        // A member of an enumeration of a project: Phase(2), Phase("train").
        const bool is_member = kind == Kind::integer || (kind == Kind::text && is_word(pickle_.text(given[0])));
        if (is_member && is_project_class(pickle_.global(callee))) return empty;
        const bool plain = kind == Kind::integer || kind == Kind::text || kind == Kind::none || kind == Kind::boolean;
        return plain && names_enumeration(pickle_.global(callee).name) ? empty : with_arguments;
    }
    static bool is_word(std::string_view text) {
        constexpr std::size_t longest = 32;
        return text.size() <= longest && std::all_of(text.begin(), text.end(), [](char c) {
                   return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
               });
    }

    /// Marks the arguments that a function calls. The function may call another one that does so.
    void follow(Id function, Id arguments, bool has_states) {
        while (roles(function) != asked) {
            const auto given = pickle_.items(arguments);
            Id inner = PickleGraph::nothing;
            for (std::size_t i = 0; i < std::size(callers); ++i) {
                if ((roles(function) & (1U << i)) == 0 || given.size() <= callers[i].at) continue;
                const Id argument = given[callers[i].at];
                if (callers[i].as == Argument::state) look_at_state(argument);
                else use_argument(callers[i], function, argument);
                if (callers[i].as == Argument::called && callers[i].at == 0) inner = class_of(pickle_, argument);
            }
            const bool calls_inner = inner != PickleGraph::nothing && given.size() > 2 && !has_states &&
                                     pickle_.kind(inner) == Kind::global && roles(inner) != asked;
            if (!calls_inner) return;
            if (pickle_.kind(given[2]) != Kind::tuple) return add_finding(inner, result_called);
            function = inner;
            arguments = given[2];
        }
    }
    void use_argument(const Caller& caller, Id function, Id argument) {
        const Id named = class_of(pickle_, argument);
        const Kind kind = pickle_.kind(named);
        if (kind == Kind::global) {
            const bool own = caller.as == Argument::base && is_data_(pickle_.global(named));
            const bool is_factory = is_global(pickle_, function, "collections.defaultdict");
            if (is_global(pickle_, named, "builtins.object") || own) return;
            const bool is_kept = is_factory || is_partial_of_optimizer(function, named);
            use(named, caller.as == Argument::made || is_kept ? empty : with_arguments);
        } else if (kind == Kind::call || kind == Kind::persistent) {
            const bool partial = is_call_of(pickle_, named, "functools.partial");
            const bool factory = is_global(pickle_, function, "collections.defaultdict");
            if (!(partial && factory)) add_finding(named, result_called);
        }
    }
    /// Returns true for a partial of an optimizer or a scheduler, which a program calls after it has loaded the file.
    bool is_partial_of_optimizer(Id function, Id named) const {
        const std::string_view module = pickle_.global(named).module;
        return is_global(pickle_, function, "functools.partial") &&
               (module == "torch.optim" || module.starts_with("torch.optim."));
    }
    /// Returns bits: which rows of callers a function is in, and `asked`. Its name is compared once, not for each call.
    std::uint8_t roles(Id function) {
        std::uint8_t& known = roles_[function];
        if (known != 0) return known;
        known = asked;
        const std::string name = dotted(pickle_.global(function));
        for (std::size_t i = 0; i < std::size(callers); ++i)
            if (words_of(callers[i].names).contains(name)) known = static_cast<std::uint8_t>(known | 1U << i);
        return known;
    }

    /// Returns true for a call that is harmless although its function is not: a partial of a named function, the name
    /// of a type such as Optional[int], and the class of None.
    bool is_excused(Id function, const Call& call) {
        const auto given = pickle_.items(call.arguments);
        if (given.empty() || call.keywords != PickleGraph::nothing) return false;
        const auto is_named = [&](Id id) { return pickle_.kind(class_of(pickle_, id)) == Kind::global; };
        if (is_global(pickle_, function, "functools.partial")) {
            const auto is_own_state = [&](Id state) {
                const auto parts = pickle_.nodes_in(state);
                if (pickle_.kind(state) != Kind::tuple || parts.size() != 4 || !is_named(parts[0])) return false;
                const Id named = class_of(pickle_, parts[0]);
                use(named, is_partial_of_optimizer(function, named) ? empty : with_arguments);
                return true;
            };
            return is_named(given[0]) && std::all_of(call.states.begin(), call.states.end(), is_own_state);
        }
        if (is_global(pickle_, function, "builtins.getattr")) return is_hook_of_lazy_layer(given);
        if (is_global(pickle_, function, "_operator.getitem") || is_global(pickle_, function, "operator.getitem"))
            return pickle_.kind(given[0]) == Kind::global && pickle_.global(given[0]).module == "typing";
        return is_global(pickle_, function, "builtins.type") && given.size() == 1 &&
               pickle_.kind(given[0]) == Kind::none;
    }

    /// Returns true for the methods that a layer of torch.nn without a shape keeps as hooks of its own.
    bool is_hook_of_lazy_layer(std::span<const Id> given) {
        if (given.size() != 2 || pickle_.kind(given[0]) != Kind::call || pickle_.kind(given[1]) != Kind::text)
            return false;
        const std::string_view name = pickle_.text(given[1]);
        if (name != "_lazy_load_hook" && name != "_infer_parameters") return false;
        const PickleGraph::Call call = pickle_.call(given[0]);
        Id made = class_of(pickle_, call.callee);
        const auto arguments = pickle_.items(call.arguments);
        if (pickle_.kind(made) == Kind::global && (roles(made) & 1U) != 0 && !arguments.empty())
            made = class_of(pickle_, arguments[0]);
        if (pickle_.kind(made) != Kind::global) return false;
        const PickleGraph::Global layer = pickle_.global(made);
        return layer.module.starts_with("torch.nn.modules.") && layer.name.starts_with("Lazy");
    }

    // Judgements.

    Judgement judged(Id id) {
        const PickleGraph::Global global = pickle_.global(id);
        const std::uint8_t uses = uses_[id];
        // A getattr that is not used has spelled the name of a nested class, which is a global of its own.
        if (uses == 0 && is_global(pickle_, id, "builtins.getattr")) return {Verdict::ok, {}};
        if (is_data_(global)) return {Verdict::ok, {}};
        Judgement by_name = judge(global);
        if (uses == excused) return {Verdict::needs_classes, excused_why};
        if (is_global(pickle_, id, "functools.partial")) return {Verdict::runs_code, hides_function};
        const bool may_be_project = by_name.severity == Verdict::unknown && (uses & with_arguments) == 0;
        if (may_be_project && is_project_class(global)) return {Verdict::needs_classes, of_project};
        if (by_name.severity != Verdict::needs_classes) return by_name;
        const bool called = (uses & (empty | with_arguments)) != 0;
        if (by_name.use == Use::value && called) return {Verdict::unknown, method_called};
        if (by_name.use == Use::made && (uses & value) != 0) return {Verdict::unknown, handed_on};
        if (by_name.use <= Use::made && by_name.use != Use::any && (uses & with_arguments) != 0)
            return {Verdict::unknown, constructed};
        return by_name;
    }
    static constexpr std::string_view of_project =
        "is a class of the project that wrote the file, and gets its attributes as Python pickles them";
    static constexpr std::string_view excused_why =
        "names a type, a hook of a layer, or a function with some of its arguments";

    /// Adds a finding about a value; its name is that of the first global on the way to what the value is a result of.
    void add_finding(Id of, std::string_view why) {
        constexpr int most_steps = 64;
        Id named = class_of(pickle_, of);
        for (int step = 0; step < most_steps && pickle_.kind(named) == Kind::call; ++step)
            named = class_of(pickle_, pickle_.call(named).callee);
        const bool has_name = pickle_.kind(named) == Kind::global;
        add_finding(has_name ? dotted(pickle_.global(named)) : "a value without a name", why);
    }
    void add_finding(std::string name, std::string_view why) {
        if (out_.calls.size() < Findings::most_listed)
            out_.calls.push_back({std::move(name), std::string(why), Verdict::runs_code, {}});
    }

    const PickleGraph& pickle_;
    const std::function<bool(const PickleGraph::Global&)>& is_data_;
    std::vector<std::uint8_t> uses_;
    std::vector<std::uint8_t> roles_;
    std::vector<bool> seen_;          ///< dictionaries of attributes
    std::vector<bool> is_arguments_;  ///< tuples of arguments
    std::vector<bool> holds_ = {};    ///< values with a library object in them
    std::unordered_map<Id, Judgement> names_ = {};
    PickleJudgement out_ = {};
};

}  // namespace

PickleJudgement judge_pickle(const PickleGraph& pickle,
                             const std::function<bool(const PickleGraph::Global&)>& is_data) {
    return Judge(pickle, is_data).run();
}

}  // namespace safemap::SAFEMAP_ABI::torch
