// Hashes plans. Tested by tests/write/team_test.cpp.
#include "write/plan_digest.hpp"

#include "base/checksum.hpp"
#include "write/resume_key.hpp"
#include "write/together.hpp"

#include <safemap/error.hpp>

#include <string_view>

namespace safemap::SAFEMAP_ABI::write {

namespace {

/// Returns the digest of `before` followed by what `add` packs.
template <class Add> std::string hashed(const std::string& before, Add&& add) {
    Packer all;
    all.text(before);
    add(all);
    Xxh3 hash;
    const std::string bytes = all.take();
    hash.update(std::as_bytes(std::span(bytes)));
    return hash.hex();
}

}  // namespace

void PlanDigest::add(std::span<const LazyTensor> written, const Layout& layout) {
    tensors = hashed(tensors, [&](Packer& all) {
        for (const PlannedFile& file : layout.files)
            for (const PlannedTensor& planned : file.tensors) {
                const LazyTensor& tensor = written[planned.number];
                all.text(tensor.name()).text(name(planned.dtype)).text(to_string(tensor.shape()));
            }
    });
    files = hashed(files, [&](Packer& all) {
        for (const PlannedFile& file : layout.files) {
            all.text(file.name).number(file.size).text(file.head);
            for (const PlannedTensor& planned : file.tensors) all.number(planned.offset);
        }
    });
    // Without identities, as in memory, it is empty and says nothing.
    sources = hashed(sources, [&](Packer& all) { all.text(resume_key_of(written, layout)); });
}

void PlanDigest::add(const SaveOptions& given) {
    options = hashed(options, [&](Packer& all) {
        for (const bool flag : {given.one_file, given.checksums, given.overwrite, given.resume, given.durable,
                                given.drop_cache, given.plan_only})
            all.number(flag ? 1 : 0);
        all.number(given.ranks).number(given.rank_dimension).number(given.alignment);
    });
}

std::string PlanDigest::text() const { return Packer().text(tensors).text(files).text(options).text(sources).take(); }

void PlanDigest::require_equal(std::string_view other, unsigned rank) const {
    Unpacker from(other);
    const auto require = [&](const std::string& own, std::string_view what) {
        if (from.text() == own) return;
        Error error(Errc::invalid_argument,
                    "rank " + std::to_string(rank) + " has another plan than rank 0: " + std::string(what) + " differ");
        throw std::move(error.with_hint("start all processes with the same command, on files that all of them share"));
    };
    require(tensors, "names, dtypes or shapes of tensors");
    require(files, "the files to write");
    require(options, "the options");
    require(sources, "the source files");
}

}  // namespace safemap::SAFEMAP_ABI::write
