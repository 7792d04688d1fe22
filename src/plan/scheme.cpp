#include "plan/scheme.hpp"

#include <charconv>
#include <utility>

#include "erasure/code.hpp"

namespace farhaul::plan {
namespace {

constexpr std::pair<Scheme::Kind, std::string_view> kNames[] = {
    {Scheme::Kind::kGoBackN, "gbn"},
    {Scheme::Kind::kSelectiveRepeat, "sr"},
    {Scheme::Kind::kSelectiveRepeatNack, "sr-nack"},
    {Scheme::Kind::kErasure, "ec"},
    {Scheme::Kind::kErasureXor, "ec-xor"},
    {Scheme::Kind::kAuto, "auto"},
};

bool read_number(std::string_view& text, unsigned& value) {
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{}) return false;
    text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
    return true;
}

}  // namespace

Result<Scheme> parse_scheme(std::string_view text) {
    const std::string_view name = text.substr(0, text.find(':'));
    for (const auto& [kind, known] : kNames) {
        if (name != known) continue;
        Scheme scheme{kind};
        if (!scheme.coded()) {
            if (name.size() != text.size()) break;
            return scheme;
        }
        unsigned k = 32, m = 8;  // the published choice
        std::string_view rest = text.substr(name.size());
        if (rest.starts_with(':')) {
            rest.remove_prefix(1);
            if (!read_number(rest, k) || !rest.starts_with(',')) break;
            rest.remove_prefix(1);
            if (!read_number(rest, m)) break;
        }
        if (rest == "/chunk")
            scheme.chunk_symbols = true;
        else if (!rest.empty())
            break;
        const auto code = kind == Scheme::Kind::kErasure ? erasure::Kind::kReedSolomon : erasure::Kind::kXor;
        if (auto valid = erasure::validate({code, k, m}); !valid)
            return fail(ErrorCode::kInvalidArgument, "scheme '{}': {}", text, valid.error().message);
        scheme.data_symbols = static_cast<std::uint8_t>(k);
        scheme.parity_symbols = static_cast<std::uint8_t>(m);
        return scheme;
    }
    return fail(ErrorCode::kInvalidArgument, "there is no scheme '{}': use one of {}", text, scheme_names());
}

std::string to_string(const Scheme& scheme) {
    std::string text;
    for (const auto& [kind, name] : kNames)
        if (kind == scheme.kind) text = name;
    if (scheme.coded())
        text +=
            fmt::format(":{},{}{}", scheme.data_symbols, scheme.parity_symbols, scheme.chunk_symbols ? "/chunk" : "");
    return text;
}

std::uint32_t encode_scheme(const Scheme& scheme) {
    return static_cast<std::uint32_t>(scheme.kind) | static_cast<std::uint32_t>(scheme.data_symbols) << 8 |
           static_cast<std::uint32_t>(scheme.parity_symbols) << 16 |
           static_cast<std::uint32_t>(scheme.chunk_symbols) << 24;
}

Result<Scheme> decode_scheme(std::uint32_t number) {
    const Scheme scheme{static_cast<Scheme::Kind>(number & 0xff), static_cast<std::uint8_t>(number >> 8),
                        static_cast<std::uint8_t>(number >> 16), (number >> 24 & 1) != 0};
    // What its name does not give back is none of ours.
    if (auto known = parse_scheme(to_string(scheme)); known && *known == scheme && encode_scheme(scheme) == number)
        return scheme;
    return fail(ErrorCode::kProtocol,
                "the peer asks for reliability scheme {:#x}, which this version does not know (it has {})", number,
                scheme_names());
}

std::string scheme_names() { return "auto, gbn, sr, sr-nack, ec:K,M, ec-xor:K,M"; }

}  // namespace farhaul::plan
