#include "backend/source.hpp"

#include <functional>
#include <utility>

#include "backend/null/null.hpp"

namespace farhaul::backend {

namespace {

/// An option of a source whose settings are a T.
template <typename T>
struct Rule {
    const char* name;
    const char* value;    // what --help calls it; "": the option has none
    const char* meaning;  // for --help
    Status (*set)(T& options, const std::string& value);
};

template <typename T>
Status apply(const char* source, std::span<const Rule<T>> rules, T& settings, const std::vector<Option>& options) {
    for (const Option& option : options) {
        const Rule<T>* found = nullptr;
        for (const Rule<T>& rule : rules) {
            if (option.name == rule.name) found = &rule;
        }
        if (found == nullptr) return fail(ErrorCode::kInvalidArgument, "{}: has no option '{}'", source, option.name);
        const bool wants_value = found->value[0] != '\0';
        if (wants_value != option.has_value)
            return fail(ErrorCode::kInvalidArgument, "option '{}' of {}: {} a value", option.name, source,
                        wants_value ? "needs" : "takes no");
        if (auto set = found->set(settings, option.value); !set)
            return fail(set.error().code, "option '{}={}' of {}: {}", option.name, option.value, source,
                        set.error().message);
    }
    return {};
}

Status set_bool(bool& to, const std::string& value) {
    if (value != "yes" && value != "no") return fail(ErrorCode::kInvalidArgument, "is yes or no");
    to = value == "yes";
    return {};
}

constexpr Rule<NullOptions> kNullRules[] = {
    {"zero", "yes|no", "no: reads leave the client's memory as it is",
     [](NullOptions& options, const std::string& value) { return set_bool(options.zero, value); }},
};

template <typename T>
void list(std::vector<OptionHelp>& help, const char* source, std::span<const Rule<T>> rules) {
    for (const Rule<T>& rule : rules) help.push_back({source, rule.name, rule.value, rule.meaning});
}

using Opened = Result<std::unique_ptr<fuse::FileSystem>>;

}  // namespace

std::vector<Option> split_options(const std::string& text) {
    std::vector<Option> options;
    Option option;
    bool started = false;
    const auto end_option = [&] {
        if (started) options.push_back(std::exchange(option, {}));
        started = false;
    };
    for (std::size_t i = 0; i < text.size(); ++i) {
        char c = text[i];
        if (c == ',') {
            end_option();
            continue;
        }
        if (c == '\\' && i + 1 < text.size()) {
            c = text[++i];
        } else if (c == '=' && !option.has_value) {
            option.has_value = started = true;
            continue;
        }
        started = true;
        (option.has_value ? option.value : option.name) += c;
    }
    end_option();
    return options;
}

std::vector<OptionHelp> source_options() {
    std::vector<OptionHelp> help;
    list<NullOptions>(help, "null", kNullRules);
    return help;
}

Opened open_source(const std::string& source, const std::vector<Option>& given) {
    const std::size_t colon = source.find(':');
    const std::string kind = source.substr(0, colon);
    const std::string rest = colon == std::string::npos ? "" : source.substr(colon + 1);
    if (colon == std::string::npos)
        return fail(ErrorCode::kInvalidArgument,
                    "'{}' is no source: it starts with null:, memory: or mirror: (mirror:{} for a directory)", source,
                    source);
    std::vector<Option> options = given;
    const auto add_own = [&] {
        for (Option& option : split_options(rest)) options.push_back(std::move(option));
    };
    if (kind == "null") {
        add_own();
        NullOptions settings;
        if (auto applied = apply<NullOptions>("null", kNullRules, settings, options); !applied)
            return propagate(applied);
        return make_null(settings);
    }
    return fail(ErrorCode::kInvalidArgument, "'{}:' is no kind of source: use null:, memory: or mirror:DIR", kind);
}

}  // namespace farhaul::backend
