// save(): lays out, fills a hidden sibling and renames it; or fills a sink.
#include <safemap/save.hpp>

#include "base/faults.hpp"
#include "base/text.hpp"
#include "checkpoint/origin.hpp"
#include "state/structure.hpp"
#include "write/add_structure.hpp"
#include "write/copy_extras.hpp"
#include "write/destination.hpp"
#include "write/folders.hpp"
#include "write/plan_keys.hpp"
#include "write/quantized.hpp"
#include "write/saving.hpp"
#include "write/scaling.hpp"
#include "write/storage_use.hpp"
#include "write/target.hpp"
#include "write/together.hpp"
#include "write/training_dtypes.hpp"
#include "write/write_files.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using write::Input;

/// Returns the report on the plan, which is available before the first byte is written.
SaveReport planned(const Input& input, const write::Layout& layout, const SaveOptions& options) {
    SaveReport report = write::report_on(layout);
    report.notes.insert(report.notes.begin(), input.notes.begin(), input.notes.end());
    report.layout.buffer_bytes =
        write::buffer_bytes(written_tensors(input.tensors, layout), layout, options.work.threads);
    write::report_reading(input, layout, report);
    return report;
}

/// Adds what is known after everything is copied.
void add_done(SaveReport& report, write::Layout& layout) {
    report.bytes_read = layout.read_bytes;
    report.casts = std::move(layout.casts);
    report.resumed = std::move(layout.resumed);
}

/// A save to a path: its plan, and the work on it, by one process or several.
class Saving {
public:
    /// If `replaced` is not empty, the file to be replaced must have that identity.
    Saving(const std::filesystem::path& out, const Input& input, const SaveOptions& options, write::Together& together,
           std::string replaced = {})
        : out_(out), input_(input), options_(options), replaced_(std::move(replaced)), together_(together) {}

    SaveReport run() {
        together_.all([this] { plan(); });
        require_equal_plans();
        if (options_.plan_only) return std::move(report_);
        const auto keep = [this](Error& error) { keep_finished(error); };
        adding(keep, [this] {
            begin();
            fill();
        });
        together_.lead([this] { target_->commit(); });
        return finished();
    }

private:
    void plan() {
        layout_ = write::lay_out_at(out_, input_, options_);
        report_ = planned(input_, layout_, options_);
        extras_ = write::plan_extras(out_, options_, layout_);
        extras_.report(report_);
        folders_ = write::plan_folders(options_, layout_);
        for (const write::PlannedFolder& folder : folders_) {
            write::report_folder(folder, report_);
            const std::uint64_t buffers = write::buffer_bytes(written_tensors(folder.input.tensors, folder.layout),
                                                              folder.layout, options_.work.threads);
            report_.layout.buffer_bytes = std::max(report_.layout.buffer_bytes, buffers);
        }
        if (!options_.allow_empty) require_content();
        for (std::string& note : write::notes_on_folders(out_, options_)) report_.notes.push_back(std::move(note));
        // The first process asks its target, which may have finished the commit of a dead save.
        if (options_.plan_only || !together_.leads()) note_other_models(write::replaced_files(out_, options_));
        if (options_.plan_only && together_.leads() && options_.on_plan) options_.on_plan(report_);
    }

    /// Throws no_tensors if the files would hold nothing.
    void require_content() const {
        if (report_.tensors > 0 || input_.metadata.contains(std::string(state::structure_key))) return;
        std::string what = "the output would have neither a tensor nor a structure document";
        const std::vector<SkippedObject>& skipped = report_.skipped;
        if (!skipped.empty())
            what += "; " + counted(skipped.size(), "tensor") + " skipped, the first is " +
                    safemap::quoted(skipped.front().name) + ": " + skipped.front().why;
        throw Error(Errc::no_tensors, what)
            .with_hint(
                "--allow-empty (SaveOptions::allow_empty) writes it; --structure keep writes values that are "
                "not tensors");
    }

    void note_other_models(const std::vector<std::string>& replaced) {
        for (std::string& note : write::notes_on_other_models(out_, options_, replaced))
            report_.notes.push_back(std::move(note));
    }

    write::PlanDigest digest() const {
        write::PlanDigest digest;
        digest.add(options_);
        each_part([&](auto tensors, const write::Layout& layout) { digest.add(tensors, layout); });
        return digest;
    }

    /// Returns the key of the save with all its folders; an empty string if one of the checkpoints cannot be
    /// identified.
    std::string resume_key() const {
        std::vector<std::string> keys;
        each_part([&](auto tensors, const auto& layout) { keys.push_back(write::resume_key_of(tensors, layout)); });
        if (std::find(keys.begin(), keys.end(), std::string()) != keys.end()) return {};
        std::string all = keys.front();
        for (std::size_t i = 1; i < keys.size(); ++i) all += '-' + keys[i];
        return all;
    }

    /// Calls visit(tensors, layout) for the checkpoint and then for its folders, with the tensors that are written.
    template <class Visit> void each_part(Visit&& visit) const {
        visit(written_tensors(input_.tensors, layout_), layout_);
        for (const write::PlannedFolder& folder : folders_)
            visit(written_tensors(folder.input.tensors, folder.layout), folder.layout);
    }

    void require_equal_plans() {
        std::optional<write::PlanDigest> own;
        together_.collect([this] { return digest().text(); },
                          [&](std::string_view plan, unsigned rank) {
                              if (!own) own = digest();
                              own->require_equal(plan, rank);
                          });
    }

    /// Creates the target in the first process, and finds it in the others.
    void begin() {
        together_.lead([this] {
            const bool one_file = write::is_one_file(out_, options_);
            const io::StagingOptions job{.id = one_file ? std::string() : resume_key(),
                                         .resume = options_.resume,
                                         .replaced = replaced_,
                                         .durable = options_.durable};
            std::vector<std::string> files;
            each_part([&](auto, const auto& layout) {
                for (const write::PlannedFile& file : layout.files) files.push_back(file.name);
            });
            target_.emplace(out_, options_, files, job);
            note_other_models(target_->replaced());
        });
        together_.share(
            [this] { return target_->staging().open_to_others(); },
            [this](std::string_view key, unsigned) { joined_.emplace(write::join(out_, options_, std::string(key))); });
        together_.lead([this] {
            if (options_.on_plan) options_.on_plan(report_);
            write::copy_extras(extras_, target_->staging());
            for (const write::PlannedFolder& folder : folders_) target_->staging().add_folder(folder.name);
        });
    }

    void fill() {
        std::vector<std::unique_ptr<write::Destination>> destinations;
        std::vector<write::Written> parts;
        const auto add = [&](std::span<const LazyTensor> tensors, write::Layout& written) {
            destinations.push_back(joined_ ? write::into_joined(*joined_, written)
                                           : write::into_staging(target_->staging(), written));
            parts.push_back({written_tensors(tensors, written), written, *destinations.back()});
        };
        for (write::PlannedFolder& folder : folders_) add(folder.input.tensors, folder.layout);
        add(input_.tensors, layout_);  // last: the last file is the index, which names the others
        write::write_files(parts, together_, options_.work.monitor, options_.work.threads, options_.drop_cache);
    }

    /// If the save was cancelled and can be resumed, keeps the files that are finished, and says so in a hint.
    void keep_finished(Error& error) {
        if (error.code() != Errc::cancelled || !options_.resume || !target_) return;
        const std::size_t kept = target_->staging().keep_finished();
        if (kept == 0) return;
        error.with_hint(std::to_string(kept) + " of " + std::to_string(report_.files.size()) +
                        " files are finished, and are kept for --resume (SaveOptions::resume)");
    }

    SaveReport finished() {
        if (target_) report_.notes.insert(report_.notes.end(), target_->notes().begin(), target_->notes().end());
        add_done(report_, layout_);
        for (const write::PlannedFolder& folder : folders_) write::report_written(folder, report_);
        return std::move(report_);
    }

    const std::filesystem::path& out_;
    const Input& input_;
    const SaveOptions& options_;
    std::string replaced_;
    write::Together& together_;
    write::Layout layout_;
    SaveReport report_;
    write::PlannedExtras extras_;
    std::vector<write::PlannedFolder> folders_;
    std::optional<write::Target> target_;      // in the first process
    std::optional<io::JoinedSibling> joined_;  // in the others
};

SaveReport save_to(Sink& sink, const Input& input, const SaveOptions& options) {
    write::Layout layout = write::lay_out_for(sink, input, options);
    SaveReport report = planned(input, layout, options);
    if (options.on_plan) options.on_plan(report);
    if (options.plan_only) return report;
    const auto destination = write::into_sink(sink);
    try {
        const write::Written all[] = {{input.tensors, layout, *destination}};
        write::write_files(all, *write::steps_of(nullptr), options.work.monitor, options.work.threads,
                           options.drop_cache);
        destination->commit();
    } catch (...) {
        destination->abandon();
        throw;
    }
    add_done(report, layout);
    return report;
}

}  // namespace

bool write::hashes_a_file(std::string_view key) {
    return key == "sshs_model_hash" || key == "sshs_legacy_hash" || key == "modelspec.hash_sha256";
}

namespace {

/// The metadata key in which ComfyUI describes quantised layers.
constexpr const char* quantization_key = "_quantization_metadata";

/// Puts `ties` in the place of the input's. Pairs of the metadata that name a tie follow.
void put_ties(Input& input, std::vector<AliasGroup> ties, bool exact_metadata) {
    std::set<std::string_view> in_metadata;
    for (const AliasGroup& group : input.ties)
        for (std::size_t i = 1; i < group.size(); ++i) {
            const auto pair = input.metadata.find(group[i]);
            if (pair == input.metadata.end() || pair->second != group.front()) continue;
            input.metadata.erase(pair);
            in_metadata.insert(group[i]);
        }
    for (const AliasGroup& group : ties)
        for (std::size_t i = 1; i < group.size(); ++i)
            if (!exact_metadata || in_metadata.contains(group[i])) input.metadata.try_emplace(group[i], group.front());
    input.own_ties = std::make_shared<const std::vector<AliasGroup>>(std::move(ties));
    input.ties = *input.own_ties;
}

/// Puts products with scales in the place of quantised tensors, into `own`. Returns false if no
/// tensor has scales.
bool put_products(Input& input, const SaveOptions& options, std::span<const std::uint64_t> block,
                  std::vector<LazyTensor>& own) {
    write::Scaling scaling = write::apply_scales(input.tensors, input.ties, write::quantized_in(input), options, block);
    std::move(scaling.notes.begin(), scaling.notes.end(), std::back_inserter(input.notes));
    input.stay = std::move(scaling.stay);
    if (!scaling.any) return false;
    own = std::move(scaling.tensors);
    input.tensors = own;
    put_ties(input, std::move(scaling.ties), options.exact_metadata);
    input.quantized = nullptr;  // it has the indices of the tensors before
    input.skipped = std::move(scaling.skipped);
    input.factors = std::move(scaling.factors);
    if (!scaling.all) {
        input.notes.emplace_back("some tensors stay quantised, so copied files keep what they say of the quantisation");
        return true;
    }
    input.extras = write::without_quantization(options.extras, input.notes);
    if (input.metadata.erase(quantization_key) > 0)
        input.notes.emplace_back(std::string("the metadata is written without ") + quantization_key);
    return true;
}

/// Returns the checkpoint without the names that `input` skips.
Checkpoint without_skipped(const Checkpoint& checkpoint, const Input& input) {
    std::unordered_set<std::string_view> skipped;
    for (const SkippedObject& object : input.skipped) skipped.insert(object.name);
    std::vector<std::string> names;
    for (const LazyTensor& tensor : checkpoint)
        if (!skipped.contains(tensor.name())) names.push_back(tensor.name());
    for (const AliasGroup& group : checkpoint.aliases())
        for (std::size_t i = 1; i < group.size(); ++i)
            if (!skipped.contains(group[i])) names.push_back(group[i]);
    return checkpoint.select(Selection::names(std::move(names)));
}

/// Returns the input of a save of a list of tensors. Products are put into `own`.
Input input_of_list(std::span<const LazyTensor> tensors, const SaveOptions& options, std::vector<LazyTensor>& own) {
    Input input{.tensors = tensors, .metadata = options.metadata};
    if (options.apply_scales) put_products(input, options, write::stated_block(options.extras), own);
    return input;
}

}  // namespace

write::Metadata write::metadata_of(const Checkpoint& checkpoint, Metadata given) {
    for (const auto& [key, value] : checkpoint.metadata())
        if (!hashes_a_file(key)) given.try_emplace(key, value);
    for (const AliasGroup& group : checkpoint.aliases())
        for (std::size_t i = 1; i < group.size(); ++i) given.try_emplace(group[i], group.front());
    return given;
}

write::Input write::input_of(const Checkpoint& checkpoint, Metadata metadata, const SaveOptions& options,
                             std::vector<LazyTensor>& own) {
    Input input{.tensors = {checkpoint.begin(), checkpoint.size()},
                .metadata = std::move(metadata),
                .ties = checkpoint.aliases(),
                .storages = checkpoint::Origin::storages(checkpoint)};
    for (const auto& [key, value] : checkpoint.metadata())
        if (hashes_a_file(key) && !input.metadata.contains(key))
            input.notes.push_back("the metadata " + safemap::quoted(key) +
                                  " is left out: it is a hash of the file that was read");
    if (options.apply_scales || asks_for_casts(options) || options.optimizer_dtype)
        input.quantized = quantized_by_origin(checkpoint);
    const bool products = options.apply_scales && put_products(input, options, stated_block(checkpoint.extras()), own);
    set_training_dtypes(checkpoint, options, input);
    const Checkpoint written = products ? without_skipped(checkpoint, input) : checkpoint;
    if (auto document = add_structure(written, options, input)) {
        if (!products) own.assign(checkpoint.begin(), checkpoint.end());
        own.push_back(std::move(*document));
        input.tensors = own;
    }
    return input;
}

SaveOptions write::own_options(const SaveOptions& options, const Input& input) {
    SaveOptions own = options;
    if (input.extras) own.extras = *input.extras;
    if (options.dtype || options.optimizer_dtype)
        own.dtype_of.insert(own.dtype_of.end(), input.stay.begin(), input.stay.end());
    return own;
}

namespace {

write::Metadata wanted_metadata(const Checkpoint& checkpoint, const SaveOptions& options) {
    return options.exact_metadata ? options.metadata : write::metadata_of(checkpoint, options.metadata);
}

}  // namespace

SaveReport write::save_checkpoint(const std::filesystem::path& out, const Checkpoint& checkpoint, Metadata metadata,
                                  const SaveOptions& options, const std::string& replaced) {
    const std::unique_ptr<Together> together = steps_of(options.team);
    std::vector<LazyTensor> with_structure;
    Input input;
    together->all([&] { input = input_of(checkpoint, std::move(metadata), options, with_structure); });
    const SaveOptions own = own_options(options, input);
    return Saving(out, input, own, *together, replaced).run();
}

SaveReport save(const std::filesystem::path& out, std::span<const LazyTensor> tensors, const SaveOptions& options) {
    return write::during_save(out, options.one_file, [&] {
        std::vector<LazyTensor> products;
        const Input input = input_of_list(tensors, options, products);
        const SaveOptions own = write::own_options(options, input);
        return Saving(out, input, own, *write::steps_of(options.team)).run();
    });
}

SaveReport save(const std::filesystem::path& out, const Checkpoint& checkpoint, const SaveOptions& options) {
    return write::during_save(out, options.one_file, [&] {
        const Checkpoint model = options.untie ? checkpoint::Origin::untied(checkpoint) : checkpoint;
        return write::save_checkpoint(out, model, wanted_metadata(model, options), options);
    });
}

SaveReport save(Sink& sink, std::span<const LazyTensor> tensors, const SaveOptions& options) {
    return write::during_save(sink, [&] {
        std::vector<LazyTensor> products;
        const Input input = input_of_list(tensors, options, products);
        return save_to(sink, input, write::own_options(options, input));
    });
}

SaveReport save(Sink& sink, const Checkpoint& checkpoint, const SaveOptions& options) {
    return write::during_save(sink, [&] {
        const Checkpoint model = options.untie ? checkpoint::Origin::untied(checkpoint) : checkpoint;
        std::vector<LazyTensor> with_structure;
        const Input input = write::input_of(model, wanted_metadata(model, options), options, with_structure);
        return save_to(sink, input, write::own_options(options, input));
    });
}

}  // namespace safemap::SAFEMAP_ABI
