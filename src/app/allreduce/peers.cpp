#include "app/allreduce/peers.hpp"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <sstream>

namespace farhaul::app::allreduce {

Result<std::vector<Peer>> parse_peers(std::string_view text) {
    std::vector<Peer> peers;
    std::istringstream lines{std::string(text)};
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
        if (const auto comment = line.find('#'); comment != std::string::npos) line.resize(comment);
        std::istringstream words(line);
        Peer peer;
        if (!(words >> peer.address)) continue;
        for (std::string word; words >> word;) {
            const auto equals = word.find('=');
            const std::string key = word.substr(0, equals);
            const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
            if (key == "scheme") {
                auto scheme = reliable::parse_scheme(value);
                if (!scheme) return fail(ErrorCode::kInvalidArgument, "line {}: {}", number, scheme.error().message);
                peer.scheme = *scheme;
            } else if (key == "rate") {
                auto rate = parse_rate(value);
                if (!rate) return fail(ErrorCode::kInvalidArgument, "line {}: {}", number, rate.error().message);
                peer.rate = *rate;
            } else {
                return fail(ErrorCode::kInvalidArgument,
                            "line {}: '{}' is neither scheme=NAME nor rate=RATE, which may follow HOST:PORT", number,
                            word);
            }
        }
        peers.push_back(std::move(peer));
    }
    return peers;
}

Result<std::vector<Peer>> read_peers(const std::string& path) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "r"), &std::fclose);
    if (!file) return fail_errno(errno, "cannot read the peers from " + path);
    std::string text(1u << 20, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file.get()));
    if (std::ferror(file.get()) != 0) return fail_errno(errno, "cannot read the peers from " + path);
    auto peers = parse_peers(text);
    if (!peers) return fail(peers.error().code, "{}, {}", path, peers.error().message);
    return peers;
}

}  // namespace farhaul::app::allreduce
