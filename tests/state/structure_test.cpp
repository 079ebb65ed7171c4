// Tests the structure document. From top to bottom: the comparison of trees, examples of the format, dtypes and
// Parameters, attributes, random trees there and back, limits, invalid documents.
#include "state/structure.hpp"

#include <safemap/advanced/flatten.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/structure.hpp>

#include "doctest_safemap.hpp"
#include "state/names.hpp"

#include <bit>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>

namespace structure_test {

using namespace safemap;
using namespace safemap::state;
using NodeId = StateTree::NodeId;
using Kind = StateTree::Sequence::Kind;

namespace {

using Tensors = std::map<std::string, LazyTensor>;

std::shared_ptr<const StoredTensor> store(std::size_t elements = 8) {
    return stored_run(Dtype::f32, Shape{elements}, memory_source("memory", std::vector<std::byte>(4 * elements)), 0);
}

NodeId tensor(StateTree& tree, const std::shared_ptr<const StoredTensor>& stored = store(), std::int64_t offset = 0) {
    return tree.add(
        StateTree::Tensor{.tensor = LazyTensor({}, stored, {.shape = {2}, .strides = {1}, .offset = offset})});
}

/// Returns the tensors that a file of the flattened tree would hold.
Tensors stored_tensors(const StateTree& tree) {
    Tensors tensors;
    for (const LazyTensor& each : flatten(tree).tensors) tensors.emplace(each.name(), each);
    return tensors;
}

std::string document_of(const StateTree& tree) {
    const Tensors tensors = stored_tensors(tree);
    return structure_of(
        tree, [&](const std::string& name) { return tensors.count(name) == 0 ? std::nullopt : std::optional(name); });
}

StateTree read(std::string_view document, const Tensors& tensors = {}) {
    return unflatten(document, [&](const std::string& name) {
        const auto found = tensors.find(name);
        return found == tensors.end() ? nullptr : &found->second;
    });
}

/// Compares every value, type, order and bit, and sharing. Slow and simple.
class Same {
public:
    Same(const StateTree& a, const StateTree& b) : a_(a), b_(b) {}
    bool operator()() { return node(a_.root(), b_.root()); }

private:
    bool node(NodeId i, NodeId j) {
        const auto& a = a_[i];
        const auto& b = b_[j];
        if (a.index() != b.index()) return false;
        const bool shared = std::holds_alternative<StateTree::Dict>(a) ||
                            std::holds_alternative<StateTree::Opaque>(a) ||
                            std::holds_alternative<StateTree::Tensor>(a) || is_shared(a);
        if (shared) {
            const auto [there, fresh] = in_b_.emplace(i, j);
            const auto [back, fresh_too] = in_a_.emplace(j, i);
            if (there->second != j || back->second != i) return false;
            if (!fresh) return true;
        }
        if (const auto* x = std::get_if<double>(&a))
            return std::bit_cast<std::uint64_t>(*x) == std::bit_cast<std::uint64_t>(std::get<double>(b));
        if (const auto* x = std::get_if<bool>(&a)) return *x == std::get<bool>(b);
        if (const auto* x = std::get_if<std::int64_t>(&a)) return *x == std::get<std::int64_t>(b);
        if (const auto* x = std::get_if<std::string>(&a)) return *x == std::get<std::string>(b);
        if (const auto* x = std::get_if<StateTree::BigInt>(&a))
            return x->decimal == std::get<StateTree::BigInt>(b).decimal;
        if (const auto* x = std::get_if<StateTree::Complex>(&a)) {
            const auto& y = std::get<StateTree::Complex>(b);
            return std::bit_cast<std::uint64_t>(x->real) == std::bit_cast<std::uint64_t>(y.real) &&
                   std::bit_cast<std::uint64_t>(x->imag) == std::bit_cast<std::uint64_t>(y.imag);
        }
        if (const auto* x = std::get_if<StateTree::Bytes>(&a)) {
            const auto& y = std::get<StateTree::Bytes>(b);
            return x->bytes == y.bytes && x->mutable_array == y.mutable_array;
        }
        if (const auto* x = std::get_if<StateTree::Constant>(&a)) {
            const auto& y = std::get<StateTree::Constant>(b);
            return x->kind == y.kind && x->text == y.text;
        }
        if (const auto* x = std::get_if<StateTree::Tensor>(&a)) {
            const auto& y = std::get<StateTree::Tensor>(b);
            return x->tensor.stored() == y.tensor.stored() &&
                   x->tensor.strided_view().offset == y.tensor.strided_view().offset && x->parameter == y.parameter &&
                   x->requires_grad == y.requires_grad && x->numpy == y.numpy && own(x->attributes, y.attributes);
        }
        if (const auto* x = std::get_if<StateTree::NumpyScalar>(&a)) {
            const auto& y = std::get<StateTree::NumpyScalar>(b);
            return x->dtype == y.dtype && node(x->value, y.value);
        }
        if (const auto* x = std::get_if<StateTree::Sequence>(&a)) {
            const auto& y = std::get<StateTree::Sequence>(b);
            if (x->kind != y.kind || x->items.size() != y.items.size()) return false;
            for (std::size_t k = 0; k < x->items.size(); ++k)
                if (!node(x->items[k], y.items[k])) return false;
            return true;
        }
        if (const auto* x = std::get_if<StateTree::Dict>(&a)) {
            const auto& y = std::get<StateTree::Dict>(b);
            if (x->ordered != y.ordered || x->items.size() != y.items.size()) return false;
            for (std::size_t k = 0; k < x->items.size(); ++k)
                if (!node(x->items[k].first, y.items[k].first) || !node(x->items[k].second, y.items[k].second))
                    return false;
            return parts(x->attributes, y.attributes);
        }
        if (const auto* x = std::get_if<StateTree::Opaque>(&a)) {
            const auto& y = std::get<StateTree::Opaque>(b);
            return x->type == y.type && x->why == y.why && x->form == y.form && x->arguments == y.arguments &&
                   parts(x->children, y.children);
        }
        return std::holds_alternative<StateTree::None>(a);
    }

    bool own(NodeId i, NodeId j) {
        if (i == StateTree::no_node || j == StateTree::no_node) return i == j;
        return node(i, j);
    }

    /// Returns true for values whose identity matters; Python compares other values by content only.
    static bool is_shared(const StateTree::Node& node) {
        if (const auto* bytes = std::get_if<StateTree::Bytes>(&node)) return bytes->mutable_array;
        const auto* sequence = std::get_if<StateTree::Sequence>(&node);
        return sequence != nullptr && sequence->kind != Kind::size &&
               !(sequence->kind == Kind::tuple && sequence->items.empty());
    }

    template <class Parts> bool parts(const Parts& x, const Parts& y) {
        if (x.size() != y.size()) return false;
        for (std::size_t k = 0; k < x.size(); ++k)
            if (x[k].first != y[k].first || !node(x[k].second, y[k].second)) return false;
        return true;
    }

    const StateTree& a_;
    const StateTree& b_;
    std::map<NodeId, NodeId> in_b_;
    std::map<NodeId, NodeId> in_a_;
};

std::string spelled(StateTree::Node node) {
    StateTree tree;
    tree.set_root(tree.add(std::move(node)));
    const std::string document = document_of(tree);
    const StateTree again = read(document);
    CHECK(Same(tree, again)());
    const std::string_view head = R"({"v":1,"root":)";
    REQUIRE(document.starts_with(head));
    return document.substr(head.size(), document.size() - head.size() - 1);
}

}  // namespace

TEST_CASE("values have the form in the specification, and are read back bit for bit") {
    using namespace std::string_literals;
    CHECK(spelled(StateTree::None{}) == "null");
    CHECK(spelled(true) == "true");
    CHECK(spelled(std::int64_t{-7}) == "-7");
    CHECK(spelled((std::int64_t{1} << 53) - 1) == "9007199254740991");
    CHECK(spelled(std::int64_t{1} << 53) == R"(["i","9007199254740992"])");
    CHECK(spelled(std::numeric_limits<std::int64_t>::min()) == R"(["i","-9223372036854775808"])");
    CHECK(spelled(StateTree::BigInt{"18446744073709551616"}) == R"(["i","18446744073709551616"])");
    CHECK(spelled(1.0) == "1.0");
    CHECK(spelled(-0.0) == "-0.0");
    CHECK(spelled(0.1) == "0.1");
    CHECK(spelled(5e-324) == "5e-324");
    CHECK(spelled(1e308) == "1e+308");
    CHECK(spelled(std::numeric_limits<double>::infinity()) == R"(["f","inf"])");
    CHECK(spelled(-std::numeric_limits<double>::infinity()) == R"(["f","-inf"])");
    CHECK(spelled(std::bit_cast<double>(0x7ff8000000000000U)) == R"(["f","nan"])");
    CHECK(spelled(std::bit_cast<double>(0x7ff0000000000001U)) == R"(["f","0x7ff0000000000001"])");
    CHECK(spelled(std::bit_cast<double>(0xfff8000000000000U)) == R"(["f","0xfff8000000000000"])");
    CHECK(spelled("a\"\xc3\xa9\n"s) == "\"a\\\"\xc3\xa9\\n\"");
    CHECK(spelled("nul\0"s) == R"("nul\u0000")");
    CHECK(spelled("\xed\xa0\x80x"s) == R"(["s","7aCAeA=="])");
    CHECK(spelled(StateTree::Bytes{.bytes = "ab"}) == R"(["b","YWI="])");
    CHECK(spelled(StateTree::Bytes{.bytes = "", .mutable_array = true}) == R"(["ba",""])");
    CHECK(spelled(StateTree::Complex{-0.0, std::numeric_limits<double>::infinity()}) == R"(["c",-0.0,["f","inf"]])");
    CHECK(spelled(StateTree::Constant{.kind = StateTree::Constant::Kind::dtype, .text = "float32"}) ==
          R"(["dtype","float32"])");
    CHECK(spelled(StateTree::Sequence{.kind = Kind::tuple}) == R"(["t"])");
    CHECK(spelled(StateTree::Dict{}) == "{}");
    CHECK(spelled(StateTree::Dict{.ordered = true}) == R"(["od",{}])");
    CHECK(spelled(StateTree::Constant{.kind = StateTree::Constant::Kind::numpy_dtype, .text = "<M8[ns]"}) ==
          R"(["npdtype","<M8[ns]"])");
    CHECK(spelled(StateTree::Opaque{.type = "a.B", .why = "unknown"}) == R"(["o","a.B",["t"],{},"unknown"])");
}

TEST_CASE("an optimizer's state is readable, and identifies its tensors") {
    StateTree tree;
    const auto text = [&](const char* value) { return tree.add(std::string(value)); };
    const NodeId shared = tensor(tree);
    const auto stored = store();
    StateTree::Dict state;
    state.items = {
        {tree.add(std::int64_t{0}), tree.add(StateTree::Dict{.items = {{text("exp_avg"), tensor(tree, stored)},
                                                                       {text("again"), tensor(tree, stored)},
                                                                       {text("step"), tree.add(3.0)}}})}};
    StateTree::Dict model{.ordered = true};
    model.items = {{text("a/b"), shared}, {text("tied"), shared}};
    model.attributes = {{"_metadata", tree.add(StateTree::Dict{})}};
    StateTree::Dict root;
    root.items = {{text("model"), tree.add(std::move(model))}, {text("state"), tree.add(std::move(state))}};
    tree.set_root(tree.add(std::move(root)));
    const std::string document = document_of(tree);
    CHECK(document ==
          R"({"v":1,"root":{"model":["od",{"a/b":["T"],"tied":["@","model/a~1b"]},{"@attrs":{"_metadata":{}}}],)"
          R"("state":["d",[0,{"exp_avg":["T"],"again":["@T","state/0/exp_avg"],"step":3.0}]]}})");
    CHECK(Same(tree, read(document, stored_tensors(tree)))());
}

TEST_CASE("a value that is more than a plain tensor or Python number records its kind") {
    using Form = StateTree::Opaque::Form;
    StateTree tree;
    const auto text = [&](const char* value) { return tree.add(std::string(value)); };
    const NodeId array = tensor(tree);
    std::get<StateTree::Tensor>(tree[array]).numpy = true;
    const NodeId noted = tensor(tree);
    std::get<StateTree::Tensor>(tree[noted]).parameter = true;
    std::get<StateTree::Tensor>(tree[noted]).attributes =
        tree.add(StateTree::Dict{.items = {{text("note"), text("mine")}}});
    const auto constant = [&](StateTree::Constant::Kind kind, const char* name) {
        return tree.add(StateTree::Constant{kind, name});
    };
    const NodeId quantized = tree.add(StateTree::Opaque{
        .type = "torch.Tensor",
        .why = {},
        .children = {{"", tensor(tree)},
                     {"scheme", constant(StateTree::Constant::Kind::other, "torch.per_tensor_affine")},
                     {"scale", tree.add(0.5)}},
        .form = Form::quantized});
    const NodeId sparse = tree.add(StateTree::Opaque{
        .type = "torch.Tensor",
        .why = {},
        .children = {{"layout", constant(StateTree::Constant::Kind::layout, "sparse_coo")}, {"indices", tensor(tree)}},
        .form = Form::sparse});
    const NodeId nested = tree.add(StateTree::Opaque{
        .type = "torch.Tensor", .why = "kept", .children = {{"buffer", tensor(tree)}}, .form = Form::nested});
    const NodeId object = tree.add(
        StateTree::Opaque{.type = "a.Point",
                          .why = {},
                          .children = {{"0", tensor(tree)}, {"1", tree.add(std::int64_t{2})}, {"lr", tree.add(0.1)}},
                          .arguments = 2});
    const NodeId scalar = tree.add(StateTree::NumpyScalar{"float32", tree.add(0.5)});
    StateTree::Dict root;
    root.items = {{text("array"), array}, {text("noted"), noted},  {text("q"), quantized},  {text("sp"), sparse},
                  {text("nt"), nested},   {text("point"), object}, {text("scalar"), scalar}};
    tree.set_root(tree.add(std::move(root)));
    const std::string document = document_of(tree);
    CHECK(document == R"({"v":1,"root":{"array":["np"],"noted":["T",{"p":1,"attrs":{"note":"mine"}}],)"
                      R"("q":["q",{"":["T"],"scheme":["g","torch.per_tensor_affine"],"scale":0.5}],)"
                      R"("sp":["sp",{"layout":["layout","sparse_coo"],"indices":["T"]}],)"
                      R"("nt":["nt",{"buffer":["T"]},"kept"],"point":["o","a.Point",["t",["T"],2],{"lr":0.1}],)"
                      R"("scalar":["nps","float32",0.5]}})");
    const Tensors tensors = stored_tensors(tree);
    CHECK(tensors.count("q") == 1);
    CHECK(tensors.count("sp/indices") == 1);
    CHECK(tensors.count("point/0") == 1);
    CHECK(Same(tree, read(document, tensors))());
}

TEST_CASE("a dtype that safetensors does not have is recorded, in a document of version 2") {
    const auto made = [](Dtype dtype, Shape shape) {
        return LazyTensor("x",
                          stored_run(dtype, std::move(shape), memory_source("memory", std::vector<std::byte>(96)), 0));
    };
    StateTree tree;
    const NodeId tensor = tree.add(StateTree::Tensor{.tensor = made(Dtype::c128, {2, 3}), .parameter = true});
    tree.set_root(tree.add(StateTree::Sequence{.kind = Kind::list, .items = {tensor, tensor}}));
    const std::string document = structure_of(tree, [](const std::string& name) { return name; });
    CHECK(document == R"({"v":2,"root":["l",["T",{"n":"x","dtype":"complex128","p":1}],["@","0"]]})");
    const LazyTensor stored = made(Dtype::f64, {2, 3, 2});
    const StateTree again = unflatten(document, [&](const std::string&) { return &stored; });
    const LazyTensor& found = std::get<StateTree::Tensor>(again[*again.find("0")]).tensor;
    CHECK(found.dtype() == Dtype::c128);
    CHECK(found.shape() == Shape{2, 3});
    CHECK(structure_of(again, [](const std::string& name) { return name; }) == document);
    // Without such a dtype the document has version 1.
    StateTree plain;
    plain.set_root(plain.add(StateTree::Tensor{.tensor = stored}));
    CHECK(structure_of(plain, [](const std::string& name) { return name; }) == R"({"v":1,"root":["T",{"n":"x"}]})");
}

TEST_CASE("which tensors are Parameters is reported as known only to the tree") {
    StateTree tree;
    const NodeId plain = tensor(tree);
    const NodeId parameter = tensor(tree);
    std::get<StateTree::Tensor>(tree[parameter]).parameter = true;
    const NodeId with_gradient = tensor(tree);
    std::get<StateTree::Tensor>(tree[with_gradient]).requires_grad = true;
    tree.set_root(tree.add(StateTree::Sequence{.kind = Kind::list, .items = {plain, parameter, with_gradient}}));
    REQUIRE(flatten(tree).lost_without_structure.size() == 1);
    CHECK(flatten(tree).lost_without_structure[0].starts_with("2 tensors are Parameters or require gradients"));
    CHECK(flatten(tree).lost_without_structure[0].find("for example 1") != std::string::npos);
}

TEST_CASE("tensors in a tensor's attributes are reported, and not stored") {
    StateTree tree;
    const NodeId around = tensor(tree);
    StateTree::Dict own;
    own.items = {{tree.add(std::string("other")), tensor(tree)}, {tree.add(std::string("self")), around}};
    std::get<StateTree::Tensor>(tree[around]).attributes = tree.add(std::move(own));
    tree.set_root(tree.add(StateTree::Sequence{.kind = Kind::list, .items = {around}}));
    CHECK(flatten(tree).tensors.size() == 1);
    REQUIRE(flatten(tree).lost_without_structure.size() == 1);
    CHECK(flatten(tree).lost_without_structure[0].find("for example 0") != std::string::npos);
    const std::string document = document_of(tree);
    CHECK(document == R"({"v":1,"root":["l",["T",{"attrs":{"other":)"
                      R"(["o","torch.Tensor",["t"],{},"a tensor that was not stored"],"self":["@","0"]}}]]})");
    const StateTree again = read(document, stored_tensors(tree));
    const NodeId first = std::get<StateTree::Sequence>(again[again.root()]).items[0];
    const auto& attributes = std::get<StateTree::Dict>(again[std::get<StateTree::Tensor>(again[first]).attributes]);
    CHECK(attributes.items[1].second == first);
}

TEST_CASE("a value that is first met in attributes keeps its tensors at their named place") {
    for (const bool holds_tensor : {true, false}) {
        CAPTURE(holds_tensor);
        StateTree tree;
        const NodeId item = holds_tensor ? tensor(tree) : tree.add(std::int64_t{1});
        const NodeId list = tree.add(StateTree::Sequence{.kind = Kind::list, .items = {item}});
        StateTree::Dict dict{.ordered = true, .attributes = {{"meta", list}}};
        StateTree::Dict root;
        root.items = {{tree.add(std::string("a")), tree.add(std::move(dict))}, {tree.add(std::string("b")), list}};
        tree.set_root(tree.add(std::move(root)));
        const std::string document = document_of(tree);
        const StateTree again = read(document, stored_tensors(tree));
        const NodeId first = std::get<StateTree::Sequence>(again[*again.find("b")]).items[0];
        CHECK(std::holds_alternative<StateTree::Tensor>(again[first]) == holds_tensor);
        CHECK((document.find(R"("b":["@","a/~attrs/meta"])") != document.npos) == !holds_tensor);
    }
}

TEST_CASE("a renamed tensor records its name, and an unsaved one becomes an object") {
    StateTree tree;
    StateTree::Dict dict;
    dict.items = {{tree.add(std::string("w")), tensor(tree)}, {tree.add(std::string("x")), tensor(tree)}};
    tree.set_root(tree.add(std::move(dict)));
    const std::string document = structure_of(
        tree, [](const std::string& name) { return name == "w" ? std::optional("model.w") : std::nullopt; });
    CHECK(document == R"({"v":1,"root":{"w":["T",{"n":"model.w"}],"x":)"
                      R"(["o","torch.Tensor",["t"],{},"a tensor that was not stored"]}})");
    Tensors tensors;
    tensors.emplace("model.w", flatten(tree).tensors[0].renamed("model.w"));
    const StateTree again = read(document, tensors);
    const auto& items = std::get<StateTree::Dict>(again[again.root()]).items;
    CHECK(std::get<StateTree::Tensor>(again[items[0].second]).tensor.name() == "model.w");
}

TEST_CASE("random trees are read back the same, with cycles, ties and shared values") {
    std::mt19937 random(7);
    using namespace std::string_literals;
    const std::vector<std::string> keys{
        "", "a", "b", "a/b", "a~b", "~s", "0", "-1", "00", "__metadata__", "~true", "~root", "\xed\xa0\x80", "x\0"s};
    const std::vector<double> reals{
        0.0, -0.0, 0.1, 1e300, std::numeric_limits<double>::infinity(), std::bit_cast<double>(0x7ff0000000000001U)};
    for (int round = 0; round < 4000; ++round) {
        CAPTURE(round);
        StateTree tree;
        const auto stored = store(16);
        const std::size_t size = 1 + random() % 30;
        const auto any = [&] { return static_cast<NodeId>(random() % size); };
        std::vector<NodeId> pairs;
        const auto named = [&] {
            std::vector<std::pair<std::string, NodeId>> parts;
            for (const std::string& key : {""s, "x"s, "0"s})
                if (random() % 3 == 0) parts.emplace_back(key, any());
            return parts;
        };
        const auto object = [&] {
            const auto form = static_cast<StateTree::Opaque::Form>(random() % 4);
            StateTree::Opaque made{.type = "torch.Tensor", .why = "unknown", .children = named(), .form = form};
            if (form != StateTree::Opaque::Form::object || random() % 2 == 0) return made;
            made.type = "x.Y";
            made.children.clear();
            made.arguments = static_cast<std::uint32_t>(random() % 3);
            for (std::uint32_t n = 0; n < made.arguments; ++n) made.children.emplace_back(std::to_string(n), any());
            made.children.emplace_back("z", any());
            return made;
        };
        for (std::size_t i = 0; i < size; ++i) {
            switch (random() % 14) {
                case 0:
                case 1:
                case 2: {
                    const bool tied = random() % 2 == 0;
                    const NodeId id = tensor(tree, tied ? stored : store(), static_cast<std::int64_t>(random() % 3));
                    std::get<StateTree::Tensor>(tree[id]).parameter = random() % 2 == 0;
                    std::get<StateTree::Tensor>(tree[id]).requires_grad = random() % 2 == 0;
                    std::get<StateTree::Tensor>(tree[id]).numpy = !tied && random() % 2 == 0;
                    if (random() % 4 == 0)
                        std::get<StateTree::Tensor>(tree[id]).attributes = static_cast<NodeId>(size + 3);
                    break;
                }
                case 3: tree.add(std::int64_t(random())); break;
                case 4: tree.add(random() % 2 == 0); break;
                case 5: tree.add(keys[random() % keys.size()]); break;
                case 6: tree.add(reals[random() % reals.size()]); break;
                case 7: tree.add(StateTree::Bytes{keys[random() % keys.size()], random() % 2 == 0}); break;
                case 8:
                case 9: {
                    StateTree::Sequence sequence{.kind = static_cast<Kind>(random() % 4)};
                    for (std::size_t n = random() % 4; n > 0; --n) sequence.items.push_back(any());
                    tree.add(std::move(sequence));
                    break;
                }
                case 10: {
                    StateTree::Dict dict{.ordered = random() % 2 == 0};
                    for (std::size_t n = random() % 4; n > 0; --n) dict.items.emplace_back(any(), any());
                    pairs.push_back(tree.add(std::move(dict)));
                    break;
                }
                case 11: {
                    StateTree::Dict dict{.ordered = random() % 2 == 0};
                    for (std::size_t n = 0; n < 3; ++n) dict.items.emplace_back(static_cast<NodeId>(size + n), any());
                    if (random() % 2 == 0) dict.attributes = {{"_metadata", static_cast<NodeId>(size)}};
                    tree.add(std::move(dict));
                    break;
                }
                case 12: tree.add(StateTree::NumpyScalar{"float32", static_cast<NodeId>(size)}); break;
                default: tree.add(object());
            }
        }
        for (std::size_t n = 0; n < 3; ++n) tree.add(keys[1 + n]);
        tree.add(StateTree::Dict{.items = {{static_cast<NodeId>(size), static_cast<NodeId>(size + 1)}}});
        // As in Python, keys are unique.
        for (const NodeId id : pairs) {
            std::set<std::string> seen;
            std::erase_if(std::get<StateTree::Dict>(tree[id]).items, [&](const auto& item) {
                return !seen.insert(state::key_segment(tree[item.first], 0)).second;
            });
        }
        tree.set_root(any());
        const std::string document = document_of(tree);
        CAPTURE(document);
        CHECK(Same(tree, read(document, stored_tensors(tree)))());
    }
}

TEST_CASE("a tree that is too deep or too large for a document is refused quickly") {
    SUBCASE("nested lists") {
        StateTree tree;
        NodeId id = tree.add(StateTree::None{});
        for (int i = 0; i < 300'000; ++i) id = tree.add(StateTree::Sequence{.kind = Kind::list, .items = {id}});
        tree.set_root(id);
        CHECK_FAULT(document_of(tree), Errc::structure_too_large);
    }
    SUBCASE("a long text in very many places") {
        StateTree tree;
        const NodeId text = tree.add(std::string(1'000'000, 'x'));
        StateTree::Sequence list{.kind = Kind::list};
        for (int i = 0; i < 1'000'000; ++i) list.items.push_back(text);
        tree.set_root(tree.add(std::move(list)));
        CHECK_FAULT(document_of(tree), Errc::structure_too_large);
    }
    SUBCASE("every kind of value near the deepest level") {
        for (unsigned depth = deepest_structure - 8; depth <= deepest_structure; ++depth) {
            for (int kind = 0; kind < 5; ++kind) {
                CAPTURE(depth);
                CAPTURE(kind);
                StateTree tree;
                NodeId id = tensor(tree);
                auto& made = std::get<StateTree::Tensor>(tree[id]);
                if (kind == 1) made.parameter = true;
                if (kind == 2) id = tree.add(StateTree::Dict{.attributes = {{"x", tree.add(std::int64_t{1})}}});
                if (kind == 3) id = tree.add(StateTree::Dict{.attributes = {{"x", id}}});
                if (kind == 4)
                    id = tree.add(StateTree::Opaque{.type = "a.B", .why = {}, .children = {{"0", id}}, .arguments = 1});
                for (unsigned i = 0; i < depth; ++i)
                    id = tree.add(StateTree::Sequence{.kind = Kind::list, .items = {id}});
                tree.set_root(id);
                std::string document;
                try {
                    document = document_of(tree);
                } catch (const Error& error) {
                    CHECK(error.code() == Errc::structure_too_large);
                    continue;
                }
                CHECK_OK(read(document, stored_tensors(tree)));
            }
        }
    }
    SUBCASE("one long name for many tensors") {
        const std::string name(1'000'000, 'w');
        std::string document = R"({"v":1,"root":["l")";
        for (int i = 0; i < 3000; ++i) document += R"(,["T",{"n":"w"}])";
        const LazyTensor found(name, store());
        CHECK_FAULT(unflatten(document + "]}", [&](const std::string&) { return &found; }), Errc::bad_structure);
    }
    SUBCASE("the deepest allowed nesting") {
        StateTree tree;
        NodeId id = tree.add(StateTree::None{});
        for (unsigned i = 0; i + 1 < deepest_structure; ++i)
            id = tree.add(StateTree::Sequence{.kind = Kind::list, .items = {id}});
        tree.set_root(id);
        CHECK(Same(tree, read(document_of(tree)))());
        tree.set_root(tree.add(StateTree::Sequence{.kind = Kind::list, .items = {id}}));
        CHECK_FAULT(document_of(tree), Errc::structure_too_large);
    }
}

TEST_CASE("an invalid document is one clear error") {
    for (const char* root : {
             R"([])",
             R"([1])",
             R"(["x"])",
             R"(["T"])",
             R"(["T",{"n":1}])",
             R"(["T",1])",
             R"(["i",1])",
             R"(["i","1.5"])",
             R"(["i",""])",
             R"(["i","-"])",
             R"(["i"])",
             R"(["f","1.5"])",
             R"(["f","0x1"])",
             R"(["f","0x7ff800000000000g"])",
             R"(["b","YWI"])",
             R"(["b","YWJ="])",
             R"(["b","Y=I="])",
             R"(["s"])",
             R"(["c",1.0])",
             R"(["c",1.0,"x"])",
             R"(["@","a"])",
             R"(["l",["@","1"],["l"]])",
             R"(["l",["l",0,0],["@T","0"]])",
             R"(["T",{"p":0}])",
             R"(["T",{"rg":false}])",
             R"(["@T"])",
             R"(["@T",""])",
             R"(["d",1])",
             R"(["d",[1]])",
             R"(["d",{},{}])",
             R"(["od",{},{"@attrs":1}])",
             R"(["od",{},{},{"@attrs":{}}])",
             R"(["o"])",
             R"(["o","x"])",
             R"(["o","x",{}])",
             R"(["o","x",["l"],{}])",
             R"(["o","x",["t"]])",
             R"(["o",1,["t"],{}])",
             R"(["o","x",["t"],{},1])",
             R"(["o","x",["t"],{},"why",1])",
             R"(["q"])",
             R"(["q",1])",
             R"(["sp",{},1])",
             R"(["nt",{"x":["T"]}])",
             R"(["np"])",
             R"(["nps","float32"])",
             R"(["nps",1,1.0])",
             R"(["nps","float32",["l"]])",
             R"({"a":1,"a":2})",
             R"(["od",{"a":1},{"@attrs":{"x":1,"x":2}}])",
             R"(["o","x",["t"],{"a":1,"a":2}])",
             R"(["o","x",["t",1],{"0":2}])",
             R"(["npdtype"])",
             R"(["dtype",1])",
             R"(18446744073709551615)",
             R"(1e999)",
             R"("\ud800")",
         }) {
        CAPTURE(root);
        const std::string document = std::string(R"({"v":1,"root":)") + root + "}";
        CHECK_FAULT(read(document), Errc::bad_structure);
    }
    for (const char* document : {"", "{", "[]", "{}", R"({"v":3,"root":null})", R"({"v":"2","root":null})",
                                 R"({"v":1})", R"({"root":null})"}) {
        CAPTURE(document);
        CHECK_FAULT(read(document), Errc::bad_structure);
    }
    const std::string deep = R"({"v":1,"root":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
    CHECK_FAULT(read(deep), Errc::bad_structure);
}

}  // namespace structure_test
