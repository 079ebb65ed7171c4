// Keeps the questions of each thread.
#include "base/interruption.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

thread_local Interruption* innermost = nullptr;

}  // namespace

Interruption::Interruption(std::function<void()> question)
    : question_(std::move(question)), outer_(std::exchange(innermost, this)) {}

Interruption::~Interruption() { innermost = outer_; }

bool Interruption::possible() noexcept { return innermost != nullptr; }

void Interruption::ask() {
    for (const Interruption* each = innermost; each != nullptr; each = each->outer_) each->question_();
}

}  // namespace safemap::SAFEMAP_ABI
