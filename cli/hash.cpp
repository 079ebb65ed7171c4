// safemap hash: prints a digest of each tensor and of the checkpoint. The format and the sharding do not change it.
#include "command.hpp"
#include "entries.hpp"
#include "parse.hpp"
#include "progress.hpp"

#include <safemap/advanced/text.hpp>
#include <safemap/digest.hpp>

#include <fmt/core.h>

namespace safemap::cli {
namespace {

JsonWriter as_json(const CheckpointDigests& digests) {
    JsonWriter json;
    json.begin_object();
    json.member("algorithm", name(digests.algorithm)).member("checkpoint", digests.checkpoint);
    json.key("tensors").begin_object();
    for (const TensorDigest& tensor : digests.tensors) json.member(tensor.name, tensor.digest);
    json.end_object().end_object();
    return json;
}

std::string as_text(const CheckpointDigests& digests, const std::string& path) {
    std::string text = fmt::format("{}  {}: {}, {}\n", digests.checkpoint, printable(path),
                                   count_text(digests.tensors.size(), "tensor"), bytes_text(digests.bytes));
    for (const TensorDigest& tensor : digests.tensors)
        text += fmt::format("{}  {}\n", tensor.digest, printable(tensor.name));
    return text;
}

class Hash final : public Command {
public:
    void declare(CLI::App& app) override {
        app.add_option("PATH", path_, "a file, a folder or an index")->required()->type_name("");
        add_parsed(app, "--algorithm", algorithm_, parse_digest_algorithm,
                   "xxh3-128 (default) detects accidental changes; sha256 also detects deliberate ones")
            ->type_name("ALGORITHM");
    }

    int run(Console& console) override {
        const Checkpoint checkpoint = Checkpoint::open(path_, common.open);
        require_selection({checkpoint}, common);
        const CheckpointDigests hashed = hash(console, checkpoint);
        if (console.json()) console.result(as_json(hashed));
        else console.result(as_text(hashed, path_));
        return 0;
    }

private:
    CheckpointDigests hash(const Console& console, const Checkpoint& checkpoint) const {
        ProgressBar bar(console);
        DigestOptions options{.algorithm = algorithm_, .selection = common.selection(), .work = common.open.work};
        options.work.monitor = bar.monitor();
        return digests(checkpoint, options);
    }

    std::string path_;
    DigestAlgorithm algorithm_ = DigestAlgorithm::xxh3_128;
};

}  // namespace

std::unique_ptr<Command> make_hash() { return std::make_unique<Hash>(); }

}  // namespace safemap::cli
