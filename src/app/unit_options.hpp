// Command line options with units: `64KiB`, `1G`, `25ms`. A value that cannot be read is a usage error that says what
// is expected.
#pragma once

#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "base/result.hpp"
#include "base/units.hpp"

namespace farhaul::app {

/// `take` is given the text and returns an error or nothing.
template <typename Take>
CLI::Option* add_checked_option(CLI::App* command, const std::string& names, Take take, const std::string& type,
                                const std::string& description) {
    return command
        ->add_option_function<std::string>(
            names,
            [names, take](const std::string& text) {
                Status status = take(text);
                if (!status) throw CLI::ValidationError(names, status.error().message);
            },
            description)
        ->type_name(type);
}

inline CLI::Option* add_size_option(CLI::App* command, const std::string& names, std::uint64_t& target,
                                    const std::string& description) {
    return add_checked_option(
        command, names,
        [&target](const std::string& text) -> Status {
            auto value = parse_size(text);
            if (!value) return propagate(value);
            target = *value;
            return {};
        },
        "SIZE", description);
}

inline CLI::Option* add_rate_option(CLI::App* command, const std::string& names, BitRate& target,
                                    const std::string& description) {
    return add_checked_option(
        command, names,
        [&target](const std::string& text) -> Status {
            auto value = parse_rate(text);
            if (!value) return propagate(value);
            target = *value;
            return {};
        },
        "RATE", description);
}

inline CLI::Option* add_duration_option(CLI::App* command, const std::string& names, Duration& target,
                                        const std::string& description) {
    return add_checked_option(
        command, names,
        [&target](const std::string& text) -> Status {
            auto value = parse_duration(text);
            if (!value) return propagate(value);
            target = *value;
            return {};
        },
        "TIME", description);
}

}  // namespace farhaul::app
