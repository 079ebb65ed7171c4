// Collects or throws the faults that validators find: open() throws the first one, verify() collects all. Also adds
// context to errors on their way through the layers.
#pragma once

#include <safemap/error.hpp>

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

class FaultSink {
public:
    virtual ~FaultSink() = default;
    /// Handles a fault. May throw `error`; if it returns, the validator goes on with the checks that still make sense.
    virtual void fault(Error error) = 0;
};

class ThrowFirst final : public FaultSink {
public:
    [[noreturn]] void fault(Error error) override { throw std::move(error); }
};

class CollectFaults final : public FaultSink {
public:
    void fault(Error error) override { faults_.push_back(std::move(error)); }
    const std::vector<Error>& faults() const& noexcept { return faults_; }
    std::vector<Error> take() { return std::move(faults_); }

private:
    std::vector<Error> faults_;
};

/// A sink that adds the path to every fault and passes it on.
class PathSink final : public FaultSink {
public:
    PathSink(FaultSink& next, std::string_view path) : next_(next), path_(path) {}
    void fault(Error error) override { next_.fault(std::move(error.with_path(path_))); }

private:
    FaultSink& next_;
    std::string path_;
};

/// Returns true if two errors report one fault of one file.
inline bool same_fault(const Error& a, const Error& b) {
    return a.code() == b.code() && a.path() == b.path() && a.message() == b.message();
}

/// Runs `read`. Passes errors about the data to `faults`; other errors leave this function.
template <class Read> void reporting(FaultSink& faults, Read&& read) {
    try {
        read();
    } catch (Error& error) {
        if (exit_code(error.code()) != 1) throw;
        faults.fault(std::move(error));
    }
}

/// Runs `work`. Calls add(error) for an Error that leaves it.
template <class Add, class Work> decltype(auto) adding(Add&& add, Work&& work) {
    try {
        return work();
    } catch (Error& error) {
        add(error);
        throw;
    }
}

/// Runs `work`. Adds the path to an Error that leaves it. `path` is a text, or a function that returns one.
template <class Path, class Work> decltype(auto) about_file(const Path& path, Work&& work) {
    const auto add = [&](Error& error) {
        if constexpr (std::is_invocable_v<const Path&>) error.with_path(path());
        else error.with_path(path);
    };
    return adding(add, std::forward<Work>(work));
}

/// Runs `work`. Adds the tensor's name to an Error that leaves it.
template <class Work> decltype(auto) about_tensor(std::string_view name, Work&& work) {
    return adding([&](Error& error) { error.with_tensor(name); }, std::forward<Work>(work));
}

}  // namespace safemap::SAFEMAP_ABI
