// From what a user calls a file system ("mirror:/srv/data") to a FileSystem.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "fuse/file_system.hpp"

namespace farhaul::backend {

/// One `-o` word: "name" or "name=value".
struct Option {
    std::string name;
    std::string value;
    bool has_value = false;
};

/// Cuts "a,b=c" at its commas; "\," is a comma in a value.
std::vector<Option> split_options(const std::string& text);

/// An option that a source takes, for --help and for guessing what a misspelt one meant.
struct OptionHelp {
    std::string source;  ///< "mirror"
    std::string name;
    std::string value;  ///< "SECONDS"; empty: it has none
    std::string meaning;
};
std::vector<OptionHelp> source_options();

/// Opens SOURCE, which is one of
///   null:[zero=no]           answers at once
///   memory:[size=1GiB]       a file system in memory
///   mirror:DIR               a directory of this host
/// with the -o words that are the source's. What stands behind "null:" and "memory:" is more such words, separated by
/// commas. Fails with kInvalidArgument for an unknown source, an option that the source does not have or a bad value,
/// and with what the source says when it cannot be opened.
Result<std::unique_ptr<fuse::FileSystem>> open_source(const std::string& source, const std::vector<Option>& options);

}  // namespace farhaul::backend
