// Where validators put what they find: open() throws at the first fault, verify() collects them all.
#pragma once

#include <safemap/error.hpp>

#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

class FaultSink {
public:
    virtual ~FaultSink() = default;
    /// May throw `error`; where it returns, the validator goes on with what still makes sense.
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

/// Runs `read`; faults of the data that it throws go to `faults`, others pass.
template <class Read> void reporting(FaultSink& faults, Read&& read) {
    try {
        read();
    } catch (Error& error) {
        if (exit_code(error.code()) != 1) throw;
        faults.fault(std::move(error));
    }
}

}  // namespace safemap::SAFEMAP_ABI
