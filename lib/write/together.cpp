// Exchanges the outcomes of steps between processes. From top to bottom:
//   Packer, Unpacker    numbers and texts as bytes
//   text_of, error_in   an Error as bytes, and back
//   TeamSteps           steps; messages while ranks work on their own; the exchange at the end of a step
//
// A rank that fails in a step tells all others at once, so that they stop, and then waits for them in the exchange. A
// rank that dies never comes to the exchange: the others wait in it until the launcher of the processes ends them.
// Tested by tests/write/team_test.cpp.
#include "write/together.hpp"

#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

namespace {

// First byte of a message.
constexpr char failed_message = 'F';
constexpr char other_message = 'M';

// First byte of an outcome.
constexpr char done = '+';
constexpr char failed = '-';
constexpr char stopped = '~';  // because another rank has failed

std::string text_of(const Error& error) {
    return Packer()
        .number(static_cast<std::uint64_t>(error.code()))
        .text(error.message())
        .text(error.path())
        .text(error.tensor())
        .text(error.hint())
        .take();
}

Error error_in(std::string_view bytes, unsigned rank) {
    Unpacker from(bytes);
    const auto code = static_cast<Errc>(from.number());
    const std::string message(from.text());
    // Rank 0 is the one whose messages are shown: no one has to know of its number.
    Error error(code, rank == 0 ? message : "rank " + std::to_string(rank) + ": " + message);
    error.with_path(from.text());
    error.with_tensor(from.text());
    error.with_hint(from.text());
    return error;
}

void pause() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

class TeamSteps final : public Together {
public:
    explicit TeamSteps(Team& team) : team_(team), posted_(team.size()) {}

    unsigned rank() const noexcept override { return team_.rank(); }
    unsigned size() const noexcept override { return team_.size(); }

    void all(const Step& step) override {
        texts([&step] { return step(), std::string(); });
    }

    void lead(const Step& step) override {
        all(leads() ? step : [] {});
    }

    void share(const Say& say, const Hear& hear) override {
        const std::string said = std::move(texts(leads() ? say : nothing).front());
        all([&] {
            if (!leads()) hear(said, 0);
        });
    }

    void collect(const Say& say, const Hear& hear) override {
        const std::vector<std::string> said = texts(leads() ? nothing : say);
        lead([&] {
            for (unsigned rank = 1; rank < said.size(); ++rank) hear(said[rank], rank);
        });
    }

    void tell_leader(std::string message) override {
        const std::lock_guard lock(mutex_);
        queue_.push_back(other_message + std::move(message));
    }

    Monitor watching(const Monitor& monitor) override {
        return {.on_progress =
                    [this, &monitor](const Progress& progress) {
                        attend();
                        return !monitor.on_progress || monitor.on_progress(progress);
                    },
                .stop = monitor.stop};
    }

private:
    struct OtherFailed {};  // thrown inside a step to end it

    static std::string nothing() { return {}; }

    /// Runs a step on every rank and returns the texts of all ranks.
    std::vector<std::string> texts(const Say& say) {
        std::exception_ptr own;
        std::vector<std::string> outcomes = exchange(outcome_of(say, own));
        other_failed_ = false;
        for (unsigned rank = 0; rank < outcomes.size(); ++rank) {
            if (outcomes[rank].front() != failed) continue;
            // Exceptions that are no errors of this library pass through where they were thrown.
            if (rank == this->rank()) std::rethrow_exception(own);
            throw error_in(std::string_view(outcomes[rank]).substr(1), rank);
        }
        for (std::string& outcome : outcomes) outcome.erase(0, 1);
        return outcomes;
    }

    /// Runs a step and returns how it ended. Keeps its exception, and lets the other ranks know of it.
    std::string outcome_of(const Say& say, std::exception_ptr& own) {
        std::string outcome;
        try {
            return done + say();
        } catch (const OtherFailed&) {
            return {stopped};
        } catch (const Error& error) {
            own = std::current_exception();
            outcome = text_of(error);
        } catch (const std::bad_alloc&) {
            own = std::current_exception();
            outcome = text_of(Error(Errc::out_of_memory, "an allocation failed"));
        } catch (const std::exception& error) {
            own = std::current_exception();
            outcome = text_of(Error(Errc::io_error, error.what()));
        } catch (...) {
            own = std::current_exception();
            outcome = text_of(Error(Errc::io_error, "an exception of the caller"));
        }
        for (unsigned rank = 0; rank < size(); ++rank)
            if (rank != this->rank()) post(rank, {failed_message});
        return failed + outcome;
    }

    /// Ends a step on all ranks. Afterwards no message of the step is on its way.
    std::vector<std::string> exchange(std::string outcome) {
        send_queued();
        Packer counts;
        for (const std::uint64_t count : posted_) counts.number(count);
        std::vector<std::string> outcomes = team_.exchange(counts.text(outcome).take());
        std::uint64_t expected = 0;
        for (std::string& each : outcomes) {
            if (each.empty())
                throw Error(Errc::invalid_argument,
                            "rank " + std::to_string(&each - outcomes.data()) + " has ended without saving")
                    .with_hint("start all processes with the same command");
            Unpacker from(each);
            for (unsigned rank = 0; rank < size(); ++rank) {
                const std::uint64_t count = from.number();
                if (rank == this->rank()) expected += count;
            }
            each = std::string(from.text());
            if (each.empty()) throw Error(Errc::io_error, "a message of another process is incomplete");
        }
        while (taken_ < expected) {
            take_messages();
            if (taken_ < expected) pause();
        }
        return outcomes;
    }

    // ---- messages

    void attend() {
        send_queued();
        take_messages();
        if (other_failed_) throw OtherFailed();
    }

    void send_queued() {
        std::deque<std::string> queued;
        {
            const std::lock_guard lock(mutex_);
            queued.swap(queue_);
        }
        for (std::string& message : queued) post(0, std::move(message));
    }

    void post(unsigned to, std::string message) {
        team_.post(to, std::move(message));
        ++posted_[to];
    }

    void take_messages() {
        while (const auto message = team_.poll()) take(*message);
    }

    void take(const Team::Message& message) {
        ++taken_;
        if (message.text.empty() || message.text.front() == failed_message) other_failed_ = true;
        else if (on_message) on_message(std::string_view(message.text).substr(1));
    }

    Team& team_;
    bool other_failed_ = false;
    std::vector<std::uint64_t> posted_;  // number of messages to each rank so far
    std::uint64_t taken_ = 0;            // number of messages received so far
    std::mutex mutex_;                   // guards queue_
    std::deque<std::string> queue_;      // messages for the leader
};

}  // namespace

Packer& Packer::number(std::uint64_t number) {
    char bytes[sizeof number];
    std::memcpy(bytes, &number, sizeof number);
    bytes_.append(bytes, sizeof number);
    return *this;
}

Packer& Packer::text(std::string_view text) {
    number(text.size());
    bytes_ += text;
    return *this;
}

std::string_view Unpacker::take(std::uint64_t size) {
    if (size > rest_.size()) throw Error(Errc::io_error, "a message of another process is incomplete");
    const std::string_view bytes = rest_.substr(0, static_cast<std::size_t>(size));
    rest_.remove_prefix(bytes.size());
    return bytes;
}

std::uint64_t Unpacker::number() {
    std::uint64_t number = 0;
    std::memcpy(&number, take(sizeof number).data(), sizeof number);
    return number;
}

std::string_view Unpacker::text() { return take(number()); }

std::unique_ptr<Together> steps_of(Team* team) {
    if (team == nullptr || team->size() < 2) return std::make_unique<Together>();
    return std::make_unique<TeamSteps>(*team);
}

}  // namespace safemap::SAFEMAP_ABI::write

void safemap::fail_together(Team& team, const Error& error) {
    write::steps_of(&team)->all([&] { throw error; });
    throw error;  // not reached
}
