// A server that embeds safemap. Four threads answer requests for slices of named tensors; one of them can switch to
// another checkpoint while the others continue. Requests are lines on stdin:
//
//     rows NAME FIRST LAST    prints the sum of rows [FIRST, LAST) of a tensor
//     hold NAME               keeps a view of a tensor, even after a switch
//     held NAME               prints the sum of all elements of that view
//     open PATH               switches to this checkpoint, or prints why not
//
// `server PATH EXPECTED` serves only checkpoints that match EXPECTED, which is a JSON file or another checkpoint.
//
// Answers are lines on stdout that begin with the number of their request: "7 sum 1.5", "8 error shard_missing: ...".
#include <safemap/safemap.hpp>

#include <condition_variable>
#include <deque>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

/// The checkpoint that is currently served.
class Served {
public:
    /// Opens `path`. If `expected` is not empty, throws model_mismatch for a checkpoint that does not match it.
    Served(const std::string& path, std::string expected) : expected_(std::move(expected)), model_(opened(path)) {}

    /// Returns a copy of the handle. Copies are cheap, and after a switch they are still of the old checkpoint.
    safemap::Checkpoint now() const {
        const std::lock_guard lock(mutex_);
        return model_;
    }

    /// Switches to another checkpoint. If that one is invalid, throws and changes nothing.
    void change_to(const std::string& path) {
        safemap::Checkpoint next = opened(path);  // without the lock, so that other threads continue
        const std::lock_guard lock(mutex_);
        std::swap(model_, next);  // the old one is destroyed after the lock
    }

private:
    safemap::Checkpoint opened(const std::string& path) const {
        safemap::Checkpoint model = safemap::Checkpoint::open(path);
        if (!expected_.empty()) safemap::plan_load(model, expected_).require();
        return model;
    }

    const std::string expected_;
    mutable std::mutex mutex_;
    safemap::Checkpoint model_;
};

class Server {
public:
    Server(const std::string& path, std::string expected, unsigned threads) : served_(path, std::move(expected)) {
        for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    }

    /// Answers all accepted requests, then joins the threads.
    ~Server() {
        {
            const std::lock_guard lock(mutex_);
            closed_ = true;
        }
        wake_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    void take(std::uint64_t number, std::string text) {
        {
            const std::lock_guard lock(mutex_);
            requests_.push_back({number, std::move(text)});
        }
        wake_.notify_one();
    }

private:
    struct Request {
        std::uint64_t number;
        std::string text;
    };

    void work() {
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [this] { return closed_ || !requests_.empty(); });
            if (requests_.empty()) return;
            const Request request = std::move(requests_.front());
            requests_.pop_front();
            lock.unlock();
            const std::string line = std::to_string(request.number) + ' ' + answer(request.text) + '\n';
            lock.lock();
            std::cout << line << std::flush;
        }
    }

    /// Returns the answer to a request. Errors are answers too: no request and no file can stop the server.
    std::string answer(const std::string& request) {
        std::istringstream words(request);
        std::string command;
        std::string what;
        words >> command >> what;
        try {
            if (command == "rows") return rows(what, words);
            if (command == "hold") return hold(what);
            if (command == "held") return held(what);
            if (command == "open") return change(what);
            return "error: no such command";
        } catch (const safemap::Error& error) {
            return "error " + std::string(name(error.code())) + ": " + error.what();
        } catch (const std::exception& error) {
            return std::string("error: ") + error.what();
        }
    }

    /// Reads only the bytes of these rows, for any file format, strides and floating-point dtype.
    std::string rows(const std::string& name, std::istream& words) const {
        std::int64_t first = 0;
        std::int64_t last = 0;
        if (!(words >> first >> last)) return "error: rows NAME FIRST LAST";
        const safemap::LazyTensor part = served_.now()[name].slice({{.start = first, .stop = last}});
        const safemap::TensorView values = part.cast(safemap::Dtype::f32).load();
        const std::span<const float> floats = values.as<float>();
        return sum_text(std::accumulate(floats.begin(), floats.end(), 0.0));
    }

    /// Keeps a view of a tensor. Copies nothing: the view points into the mapped file. Files must therefore be replaced
    /// by a rename, as safemap::save does, and never be written in place.
    std::string hold(const std::string& name) {
        safemap::TensorView view = served_.now()[name].view();
        const std::lock_guard lock(held_mutex_);
        held_.insert_or_assign(name, std::move(view));
        return "holds " + name;
    }

    std::string held(const std::string& name) const {
        const std::lock_guard lock(held_mutex_);
        const auto found = held_.find(name);
        if (found == held_.end()) return "error: holds no " + name;
        double sum = 0;
        for (std::uint64_t i = 0; i < found->second.element_count(); ++i) sum += found->second.unaligned<float>(i);
        return sum_text(sum);
    }

    std::string change(const std::string& path) {
        served_.change_to(path);
        return "serves " + path;
    }

    static std::string sum_text(double sum) {
        std::ostringstream text;
        text << "sum " << sum;
        return text.str();
    }

    Served served_;

    mutable std::mutex held_mutex_;
    std::map<std::string, safemap::TensorView> held_;

    std::mutex mutex_;  // guards the members below, and stdout
    std::condition_variable wake_;
    std::deque<Request> requests_;
    bool closed_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2 && argc != 3) return 2;
    try {
        Server server(argv[1], argc == 3 ? argv[2] : "", 4);
        std::string line;
        for (std::uint64_t number = 1; std::getline(std::cin, line); ++number) server.take(number, line);
    } catch (const safemap::Error& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
