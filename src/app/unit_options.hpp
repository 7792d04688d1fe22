// Command line options with units: `64KiB`, `1G`, `25ms`. A value that cannot be read is a usage error that says what
// is expected.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/result.hpp"
#include "base/units.hpp"

namespace farhaul::app {

/// `take` is given the text and returns an error or nothing.
template <typename Take>
CLI::Option* add_checked_option(CLI::App* command, const std::string& names, const Take& take, const std::string& type,
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

/// For options of whole numbers: the library's conversion takes "-1" for 2^64 - 1, "" for 0, and more than 2^64 - 1 for
/// that.
inline CLI::Option* whole_number(CLI::Option* option) {
    return option->check(
        [](const std::string& text) {
            std::uint64_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (error == std::errc{} && end == text.data() + text.size()) return std::string();
            return "'" + text + "' is not a whole number from 0 to 18446744073709551615";
        },
        "");
}

/// For options of numbers with a range: refuses what is no number (NaN) too, which CLI::Range lets pass.
inline CLI::Option* number_within(CLI::Option* option, double least, double most) {
    return option->check(
        [least, most](const std::string& text) {
            double value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (error == std::errc{} && end == text.data() + text.size() && value >= least && value <= most)
                return std::string();
            return fmt::format("'{}' is not a number from {} to {}", text, least, most);
        },
        "");
}

}  // namespace farhaul::app
