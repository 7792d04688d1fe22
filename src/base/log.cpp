#include "base/log.hpp"

#include <cstdlib>

#include <spdlog/sinks/stdout_color_sinks.h>

namespace farhaul {

spdlog::logger& log() {
    static const std::shared_ptr<spdlog::logger> logger = [] {
        auto created =
            std::make_shared<spdlog::logger>("farhaul", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
        created->set_pattern("%H:%M:%S.%e %n %^%l%$ %v");
        created->set_level(spdlog::level::warn);
        if (const char* level = std::getenv("FARHAUL_LOG")) {
            const auto parsed = spdlog::level::from_str(level);
            if (parsed != spdlog::level::off || std::string_view(level) == "off") created->set_level(parsed);
        }
        return created;
    }();
    return *logger;
}

bool set_log_level(std::string_view level) {
    const auto parsed = spdlog::level::from_str(std::string(level));
    if (parsed == spdlog::level::off && level != "off") return false;
    log().set_level(parsed);
    return true;
}

}  // namespace farhaul
