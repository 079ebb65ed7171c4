// Saves one file to a path and to every kind of sink, and checks that bytes and reports are the same.
#pragma once

#include <safemap/error.hpp>
#include <safemap/save.hpp>
#include <safemap/sink.hpp>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace samples {

using namespace safemap;

/// The result of one save: a file, or the code of its error.
struct Saved {
    std::string bytes = {};
    SaveReport report = {};
    std::optional<Errc> error = {};
};

inline std::string text_of(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Saves something that the caller knows.
using SaveTo = std::function<SaveReport(Sink&, const SaveOptions&)>;
using SaveAt = std::function<SaveReport(const std::filesystem::path&, const SaveOptions&)>;

/// Saves to a vector, to memory of exactly that size, to a callback that keeps the bytes by offset, and to a file.
std::vector<Saved> saved_to_sinks(const std::string& name, const SaveTo& what, const SaveOptions& options);

SaveReport save_and_compare(const std::filesystem::path& out, const SaveTo& to_sink, const SaveAt& to_path,
                            const SaveOptions& options);

template <class What> SaveTo saver_of(const What& what) {
    return [&what](Sink& sink, const SaveOptions& options) { return save(sink, what, options); };
}

/// Saves to a path, and the same to every kind of sink.
template <class What>
SaveReport save_everywhere(const std::filesystem::path& out, const What& what, const SaveOptions& options = {}) {
    const SaveAt to_path = [&what](const auto& path, const SaveOptions& same) { return save(path, what, same); };
    return save_and_compare(out, saver_of(what), to_path, options);
}

/// Returns true if every sink refuses with the same `code` as a path, for a reason in the tensors or the options.
template <class What> bool no_sink_takes(const What& what, const SaveOptions& options, Errc code) {
    for (const Saved& saved : saved_to_sinks("f.safetensors", saver_of(what), options))
        if (saved.error != code) return false;
    return true;
}

}  // namespace samples
