// Reads archives of torch.save that hold one tensor each. Files of torch.distributed.checkpoint have them by the
// thousand, and most are alike but for their numbers: archives with equal pickles are parsed once.
#pragma once

#include "torch/archive_records.hpp"
#include "torch/named_globals.hpp"

#include <safemap/advanced/strides.hpp>
#include <safemap/lazy_tensor.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI::torch {

/// A tensor without its bytes: all that its pickle says.
struct TensorForm {
    Dtype dtype = Dtype::f32;
    Shape shape = {};
    Shape stored_shape = {};               ///< shape of all elements of the storage
    std::optional<StridedView> view = {};  ///< nothing: all elements of the storage, row-major
    Decoding decoding = {};

    /// Returns the tensor whose storage begins at a byte of a source. A tensor without elements needs no source.
    LazyTensor at(std::shared_ptr<const Source> source, std::uint64_t offset) const;
};

/// The tensor of one archive: its form, and where its storage is.
struct PlacedTensor {
    std::uint32_t form = 0;  ///< number in TensorForms
    std::shared_ptr<const Source> source = {};
    std::uint64_t offset = 0;
};

/// The forms of the tensors of many archives. read() may be called from several threads at once.
class TensorForms {
public:
    /// If `strict`, read() refuses pickles with unknown globals.
    explicit TensorForms(bool strict) : strict_(strict) {}

    /// Reads the tensor of an archive. `order` is the place of the archive among all of them. Throws:
    ///
    /// - piece_mismatch if the archive holds something else than a plain tensor
    /// - unsafe_call if its pickle names a function that runs code; unknown_global
    /// - the zip_*, pickle_* and tensor faults that read_archive() throws
    PlacedTensor read(ArchiveRecords& records, std::uint64_t order);

    /// Returns a form. Valid while this object lives.
    const TensorForm& form(std::uint32_t number) const {
        const std::lock_guard lock(mutex_);
        return forms_[number].form;
    }
    /// Calls visit(order, globals) for each set of globals that pickles name, with the place of the first archive that
    /// names them. Must not be called while others read.
    void each_globals(const std::function<void(std::uint64_t order, const NamedGlobals& globals)>& visit) const;

private:
    struct Form {
        TensorForm form;
        std::uint64_t bytes = 0;  ///< size of the storage
        std::string key = {};     ///< key of the storage
        std::uint32_t globals = 0;
    };
    struct Globals {
        NamedGlobals all;
        std::uint64_t first;  ///< order of the first archive
    };
    struct Parsed;

    Parsed parse(ArchiveRecords& records, const ZipRecord& record, std::string_view pickle, bool big_endian) const;
    std::uint32_t number_of(NamedGlobals globals, std::uint64_t order);
    std::optional<std::uint32_t> known(const std::string& pickle, std::uint64_t order);

    bool strict_;
    mutable std::mutex mutex_;  ///< guards everything below
    std::deque<Form> forms_ = {};
    std::deque<Globals> globals_ = {};
    std::unordered_map<std::string, std::uint32_t> sets_ = {};                 ///< numbers in globals_, by their names
    std::unordered_map<std::string, std::uint32_t, NameHash> by_pickle_ = {};  ///< numbers in forms_
    std::size_t remembered_ = 0;                                               ///< bytes of pickles in by_pickle_
};

}  // namespace safemap::SAFEMAP_ABI::torch
