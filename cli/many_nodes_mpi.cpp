// A team of processes over MPI. All calls are made on the main thread. Waiting sleeps between tests: MPI itself waits
// with a busy processor, which others on the machine need.
#include "many_nodes.hpp"

#include <safemap/error.hpp>

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace safemap::cli {
namespace {

constexpr int message_tag = 1;
constexpr std::uint64_t chunk = 1 << 20;  // bytes of each process in one round of an exchange

void require(int code, const char* what) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw Error(Errc::io_error, std::string("MPI cannot ") + what + ": " + text);
}

/// Waits for a request. Sleeps longer the longer it waits.
void wait_for(MPI_Request& request, const char* what) {
    std::chrono::microseconds pause{10};
    constexpr std::chrono::microseconds longest{2'000};
    for (int done = 0;; std::this_thread::sleep_for(pause), pause = std::min(pause * 2, longest)) {
        require(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
        if (done != 0) return;
    }
}

class MpiTeam final : public Team {
public:
    MpiTeam() {
        require(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "begin");
        require(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "begin");
        require(MPI_Comm_rank(world_, &rank_), "begin");
        require(MPI_Comm_size(world_, &size_), "begin");
    }
    ~MpiTeam() override {
        for (Sent& sent : sent_) MPI_Wait(&sent.request, MPI_STATUS_IGNORE);  // their receivers have taken them
        MPI_Comm_free(&world_);
    }
    MpiTeam(const MpiTeam&) = delete;
    MpiTeam& operator=(const MpiTeam&) = delete;

    unsigned rank() const noexcept override { return static_cast<unsigned>(rank_); }
    unsigned size() const noexcept override { return static_cast<unsigned>(size_); }

    std::vector<std::string> exchange(const std::string& own) override {
        const std::vector<std::uint64_t> sizes = exchange_size(own.size());
        std::vector<std::string> all(sizes.size());
        for (std::size_t i = 0; i < all.size(); ++i) all[i].reserve(static_cast<std::size_t>(sizes[i]));
        const std::uint64_t most = *std::max_element(sizes.begin(), sizes.end());
        for (std::uint64_t begin = 0; begin < most; begin += chunk) exchange_round(own, sizes, begin, all);
        return all;
    }

    void post(unsigned to, std::string text) override {
        Sent& sent = sent_.emplace_back(Sent{std::move(text), MPI_REQUEST_NULL});
        require(MPI_Isend(sent.text.data(), static_cast<int>(sent.text.size()), MPI_BYTE, static_cast<int>(to),
                          message_tag, world_, &sent.request),
                "send a message");
        forget_sent();
    }

    std::optional<Message> poll() override {
        forget_sent();
        int there = 0;
        MPI_Status status;
        require(MPI_Iprobe(MPI_ANY_SOURCE, message_tag, world_, &there, &status), "look for messages");
        if (there == 0) return std::nullopt;
        int size = 0;
        require(MPI_Get_count(&status, MPI_BYTE, &size), "receive a message");
        Message message{static_cast<unsigned>(status.MPI_SOURCE), std::string(static_cast<std::size_t>(size), '\0')};
        require(
            MPI_Recv(message.text.data(), size, MPI_BYTE, status.MPI_SOURCE, message_tag, world_, MPI_STATUS_IGNORE),
            "receive a message");
        return message;
    }

private:
    struct Sent {
        std::string text;
        MPI_Request request;
    };

    std::vector<std::uint64_t> exchange_size(std::uint64_t own) {
        std::vector<std::uint64_t> sizes(size());
        MPI_Request request;
        require(MPI_Iallgather(&own, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, world_, &request), "exchange");
        wait_for(request, "exchange");
        return sizes;
    }

    /// Exchanges the bytes [begin, begin + chunk) of every text.
    void exchange_round(const std::string& own, const std::vector<std::uint64_t>& sizes, std::uint64_t begin,
                        std::vector<std::string>& all) {
        const auto count = [begin](std::uint64_t size) {
            return static_cast<int>(begin < size ? std::min(chunk, size - begin) : 0);
        };
        std::vector<int> counts;
        std::vector<int> places;
        int total = 0;
        for (const std::uint64_t size : sizes) {
            counts.push_back(count(size));
            places.push_back(total);
            total += counts.back();
        }
        std::vector<char> received(static_cast<std::size_t>(total));
        const char* const from = count(own.size()) == 0 ? nullptr : own.data() + begin;
        MPI_Request request;
        require(MPI_Iallgatherv(from, count(own.size()), MPI_BYTE, received.data(), counts.data(), places.data(),
                                MPI_BYTE, world_, &request),
                "exchange");
        wait_for(request, "exchange");
        for (std::size_t i = 0; i < all.size(); ++i)
            all[i].append(received.data() + places[i], static_cast<std::size_t>(counts[i]));
    }

    /// Frees messages that have been sent.
    void forget_sent() {
        for (auto sent = sent_.begin(); sent != sent_.end();) {
            int done = 0;
            require(MPI_Test(&sent->request, &done, MPI_STATUS_IGNORE), "send a message");
            sent = done != 0 ? sent_.erase(sent) : std::next(sent);
        }
    }

    MPI_Comm world_ = MPI_COMM_NULL;
    int rank_ = 0;
    int size_ = 1;
    std::list<Sent> sent_;  // a text must stay where it is until it is sent
};

/// Returns the number that a launcher has given to this process, as text; null without a launcher: Open MPI, any with
/// PMIx (srun --mpi=pmix), or one with PMI (MPICH, Intel MPI, srun --mpi=pmi2).
const char* launched_rank() noexcept {
    for (const char* const name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
        if (const char* const rank = std::getenv(name)) return rank;
    return nullptr;
}

std::unique_ptr<MpiTeam> team;
bool saving = false;  // save() has been called

}  // namespace

Nodes::~Nodes() {
    try {
        // An empty text is a farewell. Others may still be in a step of save(), which this process has not called: they
        // learn of it here, and come to their farewell.
        const auto is_step = [](const std::string& text) { return !text.empty(); };
        for (bool wait = team != nullptr; wait;) {
            const std::vector<std::string> all = team->exchange({});
            wait = std::any_of(all.begin(), all.end(), is_step);
        }
    } catch (...) {
        // Another process has ended, and this one ends too.
    }
    team.reset();
    int begun = 0;
    if (MPI_Initialized(&begun) == MPI_SUCCESS && begun != 0) MPI_Finalize();
}

bool Nodes::is_follower() noexcept {
    const char* const rank = launched_rank();
    return rank != nullptr && std::string_view(rank) != "0";
}

bool Nodes::begin() {
    if (launched_rank() == nullptr) return false;
    int provided = 0;
    require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "begin");
    auto all = std::make_unique<MpiTeam>();
    if (all->size() > 1) team = std::move(all);
    return team && team->rank() > 0;
}

Team* Nodes::team_for_save() noexcept {
    saving = true;
    return team.get();
}

void Nodes::tell(const Error& error) {
    if (team && !saving) fail_together(*team, error);
}

}  // namespace safemap::cli
