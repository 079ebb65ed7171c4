// One pickle and nothing else. Tested by tests/torch/legacy_test.cpp and fixtures_test.cpp.
#include "torch/plain.hpp"

#include "base/text.hpp"
#include "torch/pickle_stream.hpp"
#include "torch/rebuild.hpp"

namespace safemap::torch {

Archive read_plain(const std::shared_ptr<const Source>& source, FaultSink& faults, UnknownGlobals* unknown) {
    Archive out;
    reporting(faults, [&] {
        PickleStream stream(source, {0, source->size()});
        const HeldPickle held = stream.pickle("the pickle");
        if (stream.left() > 0) {
            out.notes.push_back(bytes_text(stream.left()) + " after the end of the pickle are ignored");
        }
        const Storages storages{.find = [](std::string_view key) -> RecordData {
                                    throw Error(Errc::bad_tensor, "storage " + quoted(key) +
                                                                      " is not in the file, which is a plain pickle");
                                },
                                .file = source,
                                .bytes = held.bytes,
                                .unknown = unknown};
        Rebuilt rebuilt = rebuild(held.graph, storages, faults);
        out.tree = std::move(rebuilt.tree);
        out.notes.insert(out.notes.end(), rebuilt.notes.begin(), rebuilt.notes.end());
    });
    return out;
}

}  // namespace safemap::torch
