// Reads one safetensors file.
#include "lazy/stored_tensor.hpp"
#include "open/formats.hpp"
#include "open/read.hpp"
#include "safetensors/header.hpp"
#include "torch/examine.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::open {

namespace {

safetensors::Rules rules_of(Policy policy) {
    switch (policy) {
        case Policy::compatible: return safetensors::Rules::compatible;
        case Policy::strict: return safetensors::Rules::strict;
        case Policy::lenient: return safetensors::Rules::lenient;
    }
    throw Error(Errc::invalid_argument, "unknown policy");
}

/// Throws unknown_global if torch.load reads the file in another format. Such a file shows its tensors here and runs
/// its code in torch.load.
void refuse_second_format(const Source& source) {
    const std::string_view other = torch_takes_for(source);
    if (other.empty()) return;
    throw Error(Errc::unknown_global, "this is safetensors, but torch.load reads it as " + std::string(other) +
                                          " that may call any function; expected a file of one format")
        .with_hint(
            "do not load it with torch.load; to read it as safetensors, give it a name that ends in .safetensors");
}

/// Returns the findings about a file that torch.load reads in another format.
Findings findings_of_second_format(const std::shared_ptr<const Source>& source) {
    if (torch_takes_for(*source).empty()) return {};
    state::FindingList findings;
    static_cast<void>(torch::examine(source, {0, source->size()}, "the file as torch.load reads it", findings));
    return findings.findings();
}

/// A sink for a file that is named ".safetensors". If the file has no header, the message says what kind of file this
/// is.
class Recognise final : public FaultSink {
public:
    Recognise(FaultSink& next, const Source& source) : next_(next), source_(source) {}

    void fault(Error error) override {
        next_.fault(is_of_header(error.code())
                        ? described(error, source_, Content::safetensors, "safetensors, because of its name")
                        : error);
    }

private:
    static bool is_of_header(Errc code) {
        return code == Errc::header_too_short || code == Errc::header_too_large || code == Errc::header_past_end ||
               code == Errc::header_not_utf8 || code == Errc::header_not_json;
    }

    FaultSink& next_;
    const Source& source_;
};

/// Reads the metadata of a file that has been opened. Throws file_changed if it has changed.
state::Metadata read_metadata_again(const Source& source) {
    return about_file(source.name(), [&] {
        ThrowFirst faults;
        source.require_unchanged();
        auto header =
            safetensors::read_header(source, safetensors::Rules::lenient, safetensors::longest_header, faults);
        source.require_unchanged();
        return std::move(header.metadata);
    });
}

}  // namespace

Contents read_tensors(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    const bool told_by_name = source->name().ends_with(".safetensors");
    if (!told_by_name && options.strict_globals) refuse_second_format(*source);
    Recognise recognise(faults, *source);
    safetensors::Header header = safetensors::read_header(*source, rules_of(options.policy), options.max_header_bytes,
                                                          told_by_name ? recognise : faults);
    Contents contents;
    contents.metadata = std::move(header.metadata);
    contents.has_metadata = header.has_metadata;
    if (!told_by_name) contents.findings = findings_of_second_format(source);
    for (const Error& fault : header.tolerated) contents.notes.push_back("allowed: " + std::string(fault.what()));
    contents.tensors.reserve(header.tensors.size());
    StoredRuns stored;
    for (const safetensors::TensorInfo& info : header.tensors)
        contents.tensors.emplace_back(std::string(info.name),
                                      stored.add(info.dtype, info.shape, source, info.data.offset));
    return contents;
}

Contents read_safetensors(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    Contents contents = read_tensors(source, options, faults);
    const std::size_t pairs = contents.metadata.size();
    take_structure(contents, options.policy, faults);
    if (!contents.tree && options.olmo_names) take_olmo_names(contents, options);
    // The names of ties may change only with a tree, or with averages.
    if (contents.metadata.size() != pairs || contents.tree || options.ema)
        contents.raw_metadata = [source] { return read_metadata_again(*source); };
    return contents;
}

}  // namespace safemap::SAFEMAP_ABI::open
