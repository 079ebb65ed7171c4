// Finds the folders of this process's cgroups as the kernel documents them, and reads limits and usage there:
// Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, and proc_pid_mountinfo(5).
#include "drivers/memory_limit.hpp"

#include "base/checked.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

namespace fs = std::filesystem;

/// The names of one version of cgroups.
struct Version {
    std::string_view file_system;
    std::string_view limit;
    std::string_view usage;
    std::string_view pages_of_files[2];  // in memory.stat, of the cgroup and all below it
};
constexpr Version versions[] = {
    {"cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_active_file", "total_inactive_file"}},
    {"cgroup2", "memory.max", "memory.current", {"active_file", "inactive_file"}},
};

// The longest path that the kernel takes, PATH_MAX.
constexpr std::size_t longest_path = 4096;

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    for (std::size_t end = 0; end != text.npos; text.remove_prefix(end == text.npos ? 0 : end + 1)) {
        end = text.find(separator);
        parts.push_back(text.substr(0, end));
    }
    return parts;
}

bool has_memory(std::string_view controllers) { return std::ranges::count(split(controllers, ','), "memory") > 0; }

/// Returns a path of mountinfo, which has spaces and backslashes as three octal digits.
std::string unescaped(std::string_view text) {
    const auto is_octal = [](char digit) { return digit >= '0' && digit <= '7'; };
    std::string path;
    for (; !text.empty(); text.remove_prefix(1)) {
        if (text.size() < 4 || text[0] != '\\' || !std::ranges::all_of(text.substr(1, 3), is_octal)) {
            path += text[0];
            continue;
        }
        path += static_cast<char>((text[1] - '0') * 64 + (text[2] - '0') * 8 + (text[3] - '0'));
        text.remove_prefix(3);
    }
    return path;
}

std::optional<std::uint64_t> number_in(const fs::path& file) {
    std::string line;
    std::ifstream stream(file);
    return std::getline(stream, line) ? decimal(line) : std::nullopt;  // not of "max": no limit
}

/// Returns the bytes of pages of files, as the kernel adds them up for MemAvailable (si_mem_available()).
std::uint64_t pages_of_files(const fs::path& folder, const Version& version) {
    std::uint64_t bytes = 0;
    std::ifstream stat(folder / "memory.stat");
    for (std::string line; std::getline(stat, line);) {
        const std::size_t space = std::min(line.find(' '), line.size());
        if (std::ranges::count(version.pages_of_files, std::string_view(line).substr(0, space)) == 0) continue;
        const auto more = decimal(std::string_view(line).substr(std::min(space + 1, line.size())));
        bytes = checked_add(bytes, more.value_or(0)).value_or(bytes);
    }
    return bytes;
}

/// Returns what a cgroup leaves of its limit, or nothing without a limit.
std::optional<std::uint64_t> room_in(const fs::path& folder, const Version& version) {
    const auto limit = number_in(folder / version.limit);
    const auto usage = number_in(folder / version.usage);
    if (!limit || !usage) return std::nullopt;
    const std::uint64_t used = *usage - std::min(*usage, pages_of_files(folder, version));
    return *limit - std::min(*limit, used);
}

/// Returns the path of this process's cgroup in the hierarchy that has the memory controller, if there is one.
std::optional<std::string> path_of_cgroup(const fs::path& root, const Version& version) {
    std::ifstream cgroups(root / "proc/self/cgroup");
    for (std::string line; std::getline(cgroups, line);) {  // "4:memory:/a/b", "0::/a/b"
        const auto fields = split(line, ':');
        if (fields.size() < 3) continue;
        const bool is_second = fields[0] == "0" && fields[1].empty();
        if (version.file_system == "cgroup2" ? is_second : has_memory(fields[1]))
            return line.substr(fields[0].size() + fields[1].size() + 2);
    }
    return std::nullopt;
}

/// A mount of a hierarchy of cgroups.
struct Mount {
    std::string top;    // the path of the cgroup that is mounted; a container may see no other
    std::string point;  // where it is mounted
};

std::vector<Mount> mounts_of(const fs::path& root, const Version& version) {
    std::vector<Mount> mounts;
    std::ifstream table(root / "proc/self/mountinfo");
    for (std::string line; std::getline(table, line);) {
        // "35 31 0:32 TOP POINT rw,relatime shared:1 - cgroup cgroup rw,memory"
        const auto fields = split(line, ' ');
        const auto dash = std::ranges::find(fields, "-");
        if (dash - fields.begin() < 5 || fields.end() - dash < 4 || dash[1] != version.file_system) continue;
        if (version.file_system == "cgroup" && !has_memory(dash[3])) continue;
        mounts.push_back({.top = unescaped(fields[3]), .point = unescaped(fields[4])});
    }
    return mounts;
}

std::vector<std::string_view> names_in(std::string_view path) {
    auto names = split(path.size() > longest_path ? std::string_view() : path, '/');
    std::erase(names, "");
    return names;
}

/// Returns the names of the folders from the mounted cgroup `top` down to the cgroup `path`, or nothing if another
/// cgroup is mounted. Returns no names if only the mounted one can be told to be above: both paths begin at the
/// namespace of the process, so ".." leads to folders without a name.
std::optional<std::vector<std::string_view>> names_below(std::string_view top, std::string_view path) {
    auto names = names_in(path);
    const auto above = names_in(top);
    const auto is_up = [](std::string_view name) { return name == ".."; };
    const bool is_unnamed = !above.empty() && std::ranges::all_of(above, is_up);
    if (is_unnamed || (above.empty() && std::ranges::any_of(names, is_up))) return std::vector<std::string_view>();
    const auto [at, below] = std::ranges::mismatch(above, names);
    if (at != above.end() || std::ranges::any_of(names, is_up)) return std::nullopt;
    names.erase(names.begin(), below);
    return names;
}

}  // namespace

std::optional<std::uint64_t> room_in_cgroups(const fs::path& root) {
    std::optional<std::uint64_t> least;
    const auto take = [&](const fs::path& folder, const Version& version) {
        if (const auto room = room_in(folder, version)) least = std::min(*room, least.value_or(*room));
    };
    for (const Version& version : versions) {
        const auto path = path_of_cgroup(root, version);
        if (!path) continue;
        for (const Mount& mount : mounts_of(root, version)) {
            const auto names = names_below(mount.top, *path);
            if (!names) continue;
            fs::path folder = root / fs::path(mount.point).relative_path();
            take(folder, version);
            for (const std::string_view name : *names) take(folder /= name, version);
        }
    }
    return least;
}

}  // namespace safemap::SAFEMAP_ABI::drivers
