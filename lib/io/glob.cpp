// Expands globs with glob(3), in an order that does not depend on the locale.
#include "io/glob.hpp"

#include <safemap/error.hpp>

#include <glob.h>

#include <algorithm>
#include <memory>
#include <string>
#include <system_error>

namespace safemap::SAFEMAP_ABI {

bool is_glob(const std::filesystem::path& path) {
    if (path.native().find_first_of("*?[") == std::string::npos) return false;
    std::error_code ignored;
    return !std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

std::vector<std::filesystem::path> paths_matching(const std::filesystem::path& glob) {
    glob_t found = {};
    const std::unique_ptr<glob_t, decltype(&::globfree)> freed(&found, &::globfree);
    // GLOB_NOSORT: the order of ::glob() depends on the locale.
    const int status = ::glob(glob.c_str(), GLOB_NOSORT, nullptr, &found);
    if (status == GLOB_NOSPACE) throw Error(Errc::out_of_memory, "not enough memory for the matches of a glob");
    std::vector<std::filesystem::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    const auto is_dots = [](const std::filesystem::path& path) {
        return path.filename() == "." || path.filename() == "..";
    };
    if (!is_dots(glob)) std::erase_if(paths, is_dots);  // `.*` means hidden files
    std::sort(paths.begin(), paths.end());
    return paths;
}

}  // namespace safemap::SAFEMAP_ABI
