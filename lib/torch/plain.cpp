// Reads a file that is one pickle and nothing else. Tested by tests/torch/legacy_test.cpp and fixtures_test.cpp.
#include "torch/plain.hpp"

#include "base/text.hpp"
#include "pickle/pickle_stream.hpp"
#include "torch/legacy.hpp"
#include "torch/rebuild.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

constexpr std::string_view record = "the pickle";

/// Returns the error for bytes after the pickle, which safemap has not looked at. Programs that unpickle until the file
/// ends run them; torch.load does so if the value of the first pickle equals the magic number.
Error unseen(std::uint64_t bytes) {
    Error error(Errc::trailing_bytes, bytes_text(bytes) + " after the end of the pickle; they may be more pickles");
    return std::move(error.with_hint("without --strict-globals they are ignored"));
}

}  // namespace

Archive read_plain(const std::shared_ptr<const Source>& source, FaultSink& faults, NamedGlobals* globals) {
    const auto whole = [](const PickleGraph& pickle, const Storages& storages, FaultSink& to) {
        return rebuild(pickle, storages, to);
    };
    return read_plain_with(whole, source, faults, globals);
}

Archive read_plain_with(const Interpret& interpret, const std::shared_ptr<const Source>& source, FaultSink& faults,
                        NamedGlobals* globals) {
    Archive out;
    reporting(faults, [&] {
        PickleStream stream(source, {0, source->size()});
        const HeldPickle held = stream.pickle(record);
        // A legacy file whose first pickle is too long for the head that formats are detected from.
        if (is_magic_number(held.graph))
            return static_cast<void>(out = read_legacy_with(interpret, source, faults, globals));
        if (stream.left() > 0) {
            out.notes.push_back(bytes_text(stream.left()) + " after the end of the pickle are ignored");
            if (globals != nullptr)
                globals->examine(source, {source->size() - stream.left(), stream.left()}, "after the pickle");
        }
        const Storages storages{.find = [](std::string_view key) -> RecordData {
                                    throw Error(Errc::bad_tensor, "storage " + safemap::quoted(key) +
                                                                      " is not in the file, which is a plain pickle");
                                },
                                .file = source,
                                .bytes = held.bytes,
                                .globals = globals,
                                .record = record};
        out.take(interpret(held.graph, storages, faults));
        if (globals != nullptr && globals->strict() && stream.left() > 0) throw unseen(stream.left());
    });
    return out;
}

}  // namespace safemap::SAFEMAP_ABI::torch
