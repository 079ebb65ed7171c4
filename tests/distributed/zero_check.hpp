// Opens forged checkpoints of DeepSpeed, and compares what they give with what was forged, or with the error that a
// fault must be.
#pragma once

#include "check_error.hpp"
#include "forge/zero.hpp"
#include "inspect.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/lazy_tensor.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zero_forge {

/// Checks one tensor, to the bit.
void check_tensor(const safemap::Checkpoint& checkpoint, const std::string& name, const Expected& wanted);

/// Checks that a checkpoint has these tensors, and no other.
void check_tensors(const safemap::Checkpoint& checkpoint, const Tensors& wanted);

/// A run that is opened, and the folder that it is in. Throws if it is refused.
struct Opened {
    explicit Opened(const Run& run, const safemap::OpenOptions& options = {})
        : checkpoint((run.write(dir.path()), safemap::Checkpoint::open(dir.path(), options))) {}

    TempDir dir = TempDir::in_memory();
    safemap::Checkpoint checkpoint;
};

/// Checks the code of an error, and that its whole text, with the names of file and tensor, has all words.
void check_text(const std::optional<safemap::Error>& error, const Codes& codes, const Words& words);

/// Returns the error of opening a run, or of files by their paths.
std::optional<safemap::Error> refusal(const Run& run, const safemap::OpenOptions& options = {});
std::optional<safemap::Error> refusal_of_files(const std::map<std::string, std::string>& files);

/// Checks that a run is refused. In the words, "<model 1>" is the name of the file of model states of rank 1, and
/// "<optimizer 1>" that of its optimizer.
void check_refused(const Run& run, const Codes& codes, const Words& words);
/// Checks that the weights open, and the optimizer is refused.
void check_optimizer_refused(const Run& run, const Codes& codes, const Words& words);

/// One fault: changes `small()`, in each of these stages, and checks that it is refused.
void check_fault(const char* fault, const std::vector<int>& stages, const Codes& codes, const Words& words,
                 void (*inflict)(Run&), std::uint64_t world = 3);
/// Checks that the weights open, and the optimizer is refused.
void check_optimizer_fault(const char* fault, const std::vector<int>& stages, const Codes& codes, const Words& words,
                           void (*inflict)(Run&), std::uint64_t world = 3);

/// Changes the number of elements of a flat tensor: the storage too, so that only the length tells.
void resize(pt::Value& flat, std::int64_t by);

}  // namespace zero_forge
