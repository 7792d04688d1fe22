// The rules of docs/architecture.md, checked on the source tree: who may include whom, and where threads, clocks and
// sockets may be.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

/// Bottom to top. A room may include only rooms below it.
const std::vector<std::string> kRooms = {"base", "io",      "link",    "sdr",      "wire",
                                         "capi", "erasure", "plan",    "reliable", "collective",
                                         "fuse", "hal",     "backend", "daemon",   "app"};

/// Rooms that may see less than all that is below them, with what they may see.
const std::map<std::string, std::set<std::string>> kSees = {
    {"sdr", {"base"}},                                               // knows only the Wire interface
    {"erasure", {"base"}},                                           //
    {"plan", {"base", "erasure"}},                                   //
    {"reliable", {"base", "sdr", "erasure", "plan"}},                // runs over any wire
    {"collective", {"base", "sdr", "erasure", "plan", "reliable"}},  //
    {"io", {"base"}},                                                //
    {"fuse", {"base"}},                                   // never sees where requests come from, nor where files live
    {"hal", {"base", "io", "fuse"}},                      //
    {"backend", {"base", "io", "fuse"}},                  // a HAL never sees a backend, nor the other way round
    {"hal/remote", {"base", "fuse", "sdr", "reliable"}},  // the bridges
    {"backend/remote", {"base", "fuse", "sdr", "reliable"}},  //
    {"daemon", {"base", "io", "fuse", "hal", "backend"}},     //
};

/// The only places with threads, clocks and sockets. Everything else is told the time and handed its packets.
const std::vector<std::string> kDoesIo = {"io",          "link/realtime",  "wire/udp",     "wire/verbs",
                                          "capi",        "hal/vhost_user", "hal/dev_fuse", "backend/mirror",
                                          "backend/nfs", "backend/kv",     "daemon",       "app"};

const std::set<std::string> kIoHeaders = {
    "thread",        "chrono",       "future",       "condition_variable", "semaphore",   "latch",       "barrier",
    "stop_token",    "ctime",        "time.h",       "unistd.h",           "poll.h",      "sys/epoll.h", "sys/time.h",
    "sys/timerfd.h", "sys/socket.h", "netinet/in.h", "netinet/udp.h",      "arpa/inet.h", "netdb.h",     "net/if.h",
    "pthread.h",     "sched.h"};

const std::regex kInclude(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
// fcntl.h is for its constants, which protocols need as well; its calls are written with :: everywhere.
const std::regex kIoCall(
    R"re((?:^|[^\w:])::(?:open|openat|fcntl|read|write|close)\b|)re"
    R"re(\b(?:clock_gettime|gettimeofday|clock_nanosleep|nanosleep|usleep|pthread_create|random_device|this_thread|)re"
    R"re(steady_clock|system_clock|high_resolution_clock|sendmsg|sendmmsg|recvmsg|recvmmsg)\b)re");

struct Include {
    bool quoted;
    std::string name;
};

std::size_t height(const std::string& room) {
    return static_cast<std::size_t>(std::ranges::find(kRooms, room) - kRooms.begin());
}

bool within(const std::string& path, const std::string& folder) { return path.starts_with(folder + "/"); }

/// The room of which `name`, as written in an include, is a part; nothing for the system's and libraries' headers.
std::optional<std::string> room_of(const Include& include) {
    // The public headers are capi's face.
    if (include.name == "sdr.h" || include.name == "sdr_mr.h" || include.name.starts_with("farhaul/")) return "capi";
    if (!include.quoted) return std::nullopt;
    return include.name.substr(0, include.name.find('/'));
}

/// What is wrong with a file; `path` is relative to src/.
std::vector<std::string> violations(const std::string& path, std::string_view text) {
    std::vector<std::string> found;
    const std::string room = path.substr(0, path.find('/'));
    const auto say = [&](std::size_t line, const std::string& what) {
        found.push_back("src/" + path + ":" + std::to_string(line) + ": " + what);
    };
    if (height(room) == kRooms.size())
        say(0, "there is no room '" + room + "': list it in kRooms and in docs/architecture.md");

    const std::set<std::string>* sees = nullptr;
    for (const auto& [folder, rooms] : kSees) {
        if (within(path, folder)) sees = &rooms;  // hal/remote comes after hal
    }
    const bool does_io = std::ranges::any_of(kDoesIo, [&](const std::string& folder) { return within(path, folder); });

    std::istringstream lines{std::string(text)};
    std::string line;
    for (std::size_t number = 1; std::getline(lines, line); ++number) {
        std::smatch match;
        if (std::regex_search(line, match, kInclude)) {
            const Include include{match[1] == "\"", match[2]};
            if (!does_io && kIoHeaders.contains(include.name))
                say(number, "<" + include.name + "> in a room without threads, clocks and I/O");
            const auto target = room_of(include);
            if (!target || *target == room) continue;
            if (height(*target) == kRooms.size()) {
                say(number, "'" + include.name + "' is in no room (own files as \"room/file.hpp\", others in <>)");
            } else if (height(*target) > height(room)) {
                say(number, room + " includes " + *target + ", which is above it");
            } else if (sees && !sees->contains(*target)) {
                say(number, room + " must not know " + *target);
            }
        } else if (!does_io) {
            const std::string code = line.substr(0, line.find("//"));
            if (std::regex_search(code, match, kIoCall))
                say(number, match.str() + " in a room without threads, clocks and I/O");
        }
    }
    return found;
}

std::string read(const fs::path& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

bool is_source(const fs::path& path) {
    const auto extension = path.extension();
    return extension == ".cpp" || extension == ".hpp" || extension == ".c" || extension == ".h";
}

std::string join(const std::vector<std::string>& lines) {
    std::string text;
    for (const auto& line : lines) text += line + "\n";
    return text;
}

TEST(Architecture, RoomsIncludeOnlyWhatIsBelowThem) {
    const fs::path root = fs::path(FARHAUL_SOURCE_DIR) / "src";
    std::vector<std::string> found;
    std::size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
        if (!entry.is_regular_file() || !is_source(entry.path())) continue;
        ++files;
        const auto wrong = violations(entry.path().lexically_relative(root).generic_string(), read(entry.path()));
        found.insert(found.end(), wrong.begin(), wrong.end());
    }
    EXPECT_GT(files, 10u) << "the source tree was not found at " << root;
    EXPECT_TRUE(found.empty()) << join(found);
}

TEST(Architecture, PublicHeadersStandAlone) {
    const fs::path root = fs::path(FARHAUL_SOURCE_DIR) / "include";
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
        if (!entry.is_regular_file() || !is_source(entry.path())) continue;
        std::istringstream lines{read(entry.path())};
        std::string line;
        while (std::getline(lines, line)) {
            std::smatch match;
            if (!std::regex_search(line, match, kInclude)) continue;
            const Include include{match[1] == "\"", match[2]};
            EXPECT_TRUE(!include.quoted || room_of(include) == "capi")
                << entry.path() << " includes " << include.name << ", which is not installed";
        }
    }
}

// The checks are checked: each of these breaks one rule.
struct Example {
    const char* path;
    const char* text;
    const char* complaint;  ///< empty: allowed
};

void PrintTo(const Example& example, std::ostream* out) { *out << example.path; }

class Rules : public testing::TestWithParam<Example> {};

TEST_P(Rules, Hold) {
    const Example& example = GetParam();
    const auto found = violations(example.path, example.text);
    if (std::string_view(example.complaint).empty()) {
        EXPECT_TRUE(found.empty()) << join(found);
    } else {
        ASSERT_EQ(found.size(), 1u) << join(found);
        EXPECT_NE(found[0].find(example.complaint), std::string::npos) << found[0];
    }
}

INSTANTIATE_TEST_SUITE_P(
    Architecture, Rules,
    testing::Values(
        Example{"base/log.cpp", "#include \"base/log.hpp\"\n#include <vector>\n", ""},
        Example{"wire/sim/network.cpp", "#include \"link/model.hpp\"\n#include \"sdr/wire.hpp\"\n", ""},
        Example{"base/log.cpp", "#include \"link/model.hpp\"\n", "base includes link, which is above it"},
        Example{"sdr/queue_pair.cpp", "\n  #  include \"reliable/scheme.hpp\"\n",
                "queue_pair.cpp:2: sdr includes reliable"},
        Example{"sdr/queue_pair.cpp", "#include \"link/model.hpp\"\n", "sdr must not know link"},
        Example{"reliable/writer.cpp", "#include \"wire/udp/wire.hpp\"\n", "reliable must not know wire"},
        Example{"reliable/writer.cpp", "#include <sdr.h>\n", "reliable must not know capi"},
        Example{"wire/udp/wire.cpp", "#include \"sdr.h\"\n", "wire includes capi, which is above it"},
        Example{"app/sdr_main.cpp", "#include \"commands.hpp\"\n", "is in no room"},
        Example{"app/sdr_main.cpp", "#include \"CLI/CLI.hpp\"\n", "is in no room"},
        Example{"cellar/wine.cpp", "#include \"base/log.hpp\"\n", "no room 'cellar'"},
        Example{"fuse/session.cpp", "#include \"sdr/wire.hpp\"\n", "fuse must not know sdr"},
        Example{"hal/vhost_user/queue.cpp", "#include \"reliable/connection.hpp\"\n", "hal must not know reliable"},
        Example{"hal/remote/server.cpp", "#include \"reliable/connection.hpp\"\n", ""},
        Example{"backend/remote/client.cpp", "#include \"hal/remote/server.hpp\"\n", "backend must not know hal"},
        Example{"sdr/queue_pair.cpp", "#include <thread>\n", "<thread> in a room without threads"},
        Example{"reliable/writer.cpp", "#include <chrono>\n", "<chrono> in a room without threads"},
        Example{"link/model.cpp", "#include <sys/socket.h>\n", "<sys/socket.h> in a room without"},
        Example{"link/realtime/relay.cpp", "#include <sys/socket.h>\n#include <thread>\nclock_gettime(0, &t);\n", ""},
        Example{"wire/sim/network.cpp", "auto t = clock_gettime(CLOCK_MONOTONIC, &now);\n",
                "clock_gettime in a room without"},
        Example{"sdr/queue_pair.cpp", "int x;  // not CLOCK_MONOTONIC's clock_gettime\n", ""}));

}  // namespace
