// Measures the limits of this machine, which other numbers are divided by. Prints one line of JSON.
//
//     bench_limits FILE SCRATCH        FILE: an existing large file; SCRATCH: a path to write the same size to
//
// Writing: allocates first, then two writers copy blocks of 1 MiB from a warm file, with an fsync at the end; once
// through the page cache and once bypassing it (O_DIRECT). "write" is the faster of the two, the fastest durable way
// known. Reading: pread in blocks of 8 MiB, with one thread and with two. memcpy: between two buffers larger than the
// caches.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr std::uint64_t read_block = 8U << 20;
constexpr std::uint64_t write_block = 1U << 20;
constexpr std::size_t page = 4096;

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

class File {
public:
    File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
        if (fd_ < 0) fail(path);
    }
    ~File() { ::close(fd_); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    int fd() const noexcept { return fd_; }
    std::uint64_t size() const {
        struct stat status {};
        if (::fstat(fd_, &status) != 0) fail("fstat");
        return static_cast<std::uint64_t>(status.st_size);
    }

private:
    int fd_;
};

/// Transfers a whole range by pread or pwrite.
template <class Call> void transfer(Call&& call, char* bytes, std::uint64_t size, std::uint64_t offset) {
    while (size > 0) {
        const ssize_t done = call(bytes, size, static_cast<off_t>(offset));
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) fail("transfer");
        bytes += done;
        size -= static_cast<std::uint64_t>(done);
        offset += static_cast<std::uint64_t>(done);
    }
}

template <class Work> double seconds(Work&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Runs threads that claim blocks until all are claimed, and call work(buffer, size, offset) for each.
template <class Work> void claim_blocks(std::uint64_t total, std::uint64_t block, unsigned count, Work&& work) {
    std::atomic<std::uint64_t> next{0};
    std::exception_ptr fault;
    std::atomic<bool> failed{false};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < count; ++i)
        threads.emplace_back([&] {
            try {
                const auto free_pages = [](char* pages) { ::operator delete (pages, std::align_val_t{page}); };
                const std::unique_ptr<char, decltype(free_pages)> buffer(
                    static_cast<char*>(::operator new (block, std::align_val_t{page})), free_pages);
                std::memset(buffer.get(), 1, block);
                for (std::uint64_t at = next.fetch_add(block); at < total && !failed; at = next.fetch_add(block))
                    work(buffer.get(), std::min(block, total - at), at);
            } catch (...) {
                if (!failed.exchange(true)) fault = std::current_exception();
            }
        });
    for (std::thread& thread : threads) thread.join();
    if (fault) std::rethrow_exception(fault);
}

/// Returns bytes per second. `flags` may be O_DIRECT. The file's last partial page is left out.
double write_limit(const File& from, const std::string& scratch, int flags) {
    const std::uint64_t size = from.size() / page * page;
    const File to(scratch, O_RDWR | O_CREAT | O_EXCL | flags);
    const double taken = seconds([&] {
        const int error = ::posix_fallocate(to.fd(), 0, static_cast<off_t>(size));
        if (error != 0) throw std::system_error(error, std::generic_category(), "posix_fallocate");
        claim_blocks(size, write_block, 2, [&](char* buffer, std::uint64_t bytes, std::uint64_t at) {
            transfer([&](char* p, std::uint64_t n, off_t o) { return ::pread(from.fd(), p, n, o); }, buffer, bytes, at);
            transfer([&](char* p, std::uint64_t n, off_t o) { return ::pwrite(to.fd(), p, n, o); }, buffer, bytes, at);
        });
        if (::fsync(to.fd()) != 0) fail("fsync");
    });
    ::unlink(scratch.c_str());
    return static_cast<double>(size) / taken;
}

double read_limit(const File& from, unsigned threads) {
    const std::uint64_t size = from.size();
    const double taken = seconds([&] {
        claim_blocks(size, read_block, threads, [&](char* buffer, std::uint64_t bytes, std::uint64_t at) {
            transfer([&](char* p, std::uint64_t n, off_t o) { return ::pread(from.fd(), p, n, o); }, buffer, bytes, at);
        });
    });
    return static_cast<double>(size) / taken;
}

double memcpy_limit() {
    constexpr std::size_t size = 256U << 20;
    std::vector<char> from(size, 1);
    std::vector<char> to(size, 2);
    double best = 0;
    for (int i = 0; i < 5; ++i) {
        const double taken = seconds([&] { std::memcpy(to.data(), from.data(), size); });
        best = std::max(best, static_cast<double>(size) / taken);
        if (to[static_cast<std::size_t>(i)] != 1) throw std::runtime_error("memcpy did not copy");
    }
    return best;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fputs("usage: bench_limits FILE SCRATCH\n", stderr);
        return 2;
    }
    try {
        const File from(argv[1], O_RDONLY);
        const double warm_up = read_limit(from, 2);
        static_cast<void>(warm_up);
        const double read_one = read_limit(from, 1);
        const double read_two = read_limit(from, 2);
        const double cached = write_limit(from, argv[2], 0);
        const double direct = write_limit(from, argv[2], O_DIRECT);
        std::printf("{\"bytes\": %llu, \"write\": %.0f, \"write_cached\": %.0f, \"write_direct\": %.0f, ",
                    static_cast<unsigned long long>(from.size()), std::max(cached, direct), cached, direct);
        std::printf("\"read_1\": %.0f, \"read_2\": %.0f, \"memcpy\": %.0f}\n", read_one, read_two, memcpy_limit());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_limits: %s\n", error.what());
        return 3;
    }
    return 0;
}
