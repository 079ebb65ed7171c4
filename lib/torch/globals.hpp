// The globals of pickles: which of them are read as what they say, and which would run code. A table, so that what is
// known can be read off.
#pragma once

#include "torch/pickle.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// Whether a node is that class or function.
bool is_global(const PickleGraph& pickle, PickleGraph::Id id, std::string_view module, std::string_view name);
/// Whether a node is a call of that function.
bool is_call_of(const PickleGraph& pickle, PickleGraph::Id id, std::string_view module, std::string_view name);
/// "collections.OrderedDict".
std::string dotted(const PickleGraph::Global& global);
/// Whether values made with it are read, and not opaque: the functions and classes that torch.save names.
bool is_known(const PickleGraph::Global& global) noexcept;
/// The same in an archive of TorchScript, whose own classes are known: of their objects the state is read.
bool is_known_in_script(const PickleGraph::Global& global) noexcept;
/// Whether calling it would run code of the file's choice: os.system, builtins.eval and their kind.
bool runs_code(const PickleGraph::Global& global) noexcept;
/// Whether torch.storage._load_from_bytes, which loads any pickle it is given, is a value for others to call, as by
/// __setstate__. Where it is called itself, what it loads is looked at. Linear in the pickle.
bool hands_on_loader(const PickleGraph& pickle);
inline constexpr std::string_view load_from_bytes = "torch.storage._load_from_bytes";

/// What pickles name that is not known, for those who refuse it. Holds the first names of each kind, so that its size
/// does not grow with the file.
class UnknownGlobals {
public:
    using Known = bool(const PickleGraph::Global&);

    /// Every global of a pickle, also of values that are dropped.
    void add(const PickleGraph& pickle, Known* known = is_known);
    /// Throws unknown_global where there are any: those that run code first.
    void refuse() const;

private:
    struct Names {
        std::vector<std::string> first = {};
        bool more = false;

        void add(const PickleGraph::Global& global);
        std::string text() const;
    };

    Names unsafe_;
    Names others_;
};

}  // namespace safemap::SAFEMAP_ABI::torch
