// A folder that is gone after the test, and files in it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <system_error>

#include "base/random.hpp"

namespace farhaul::app {

class ScratchFolder {
 public:
    ScratchFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "farhaul-test-XXXXXX").string();
        path_ = ::mkdtemp(pattern.data());
    }
    ~ScratchFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
    std::string string() const { return path_.string(); }

 private:
    std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_file(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string random_text(std::size_t size, std::uint64_t seed) {
    Random random(seed);
    std::string text(size, '\0');
    for (char& c : text) c = static_cast<char>(random());
    return text;
}

/// Everything below a folder: relative path -> contents; "/" for folders, "@" for symbolic links.
inline std::map<std::string, std::string> tree(const std::filesystem::path& root) {
    namespace fs = std::filesystem;
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(root))
        found[fs::relative(entry.path(), root).string()] = entry.is_symlink()     ? "@"
                                                           : entry.is_directory() ? "/"
                                                                                  : read_file(entry.path());
    return found;
}

}  // namespace farhaul::app
