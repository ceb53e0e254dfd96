// Damaged and hostile headers: each is refused by a sentence that names the place and the values.
// Numbers are the rules of docs/formats/safetensors.md, 2.

#include <fstream>
#include <limits>

#include <gtest/gtest.h>

#include "tests/core/containers/safetensors/header_files.hpp"
#include "tests/support/failing_call.hpp"

namespace reshard::safetensors {
namespace {

struct Damage {
  int rule;
  std::string json;
  std::size_t data_bytes;
  std::vector<std::string> says;
};

std::string repeated(std::string_view part, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += part;
  return text;
}

std::string tensors(std::initializer_list<std::string_view> parts) {
  std::string json = "{";
  for (std::string_view const part : parts)
    json += (json.size() > 1 ? "," : "") + std::string(part);
  return json + "}";
}

std::string u8(std::string_view name, int begin, int end) {
  return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name,
                     end - begin, begin, end);
}

std::vector<Damage> const damages = {
    {4, "", 0, {"begins with nothing"}},
    {4, " {}", 0, {"begins with byte 0x20", "'{'"}},
    {4, "\n{}", 0, {"begins with byte 0x0a"}},
    {4, "[]", 0, {"begins with byte 0x5b"}},
    {4, "null", 0, {"begins with byte 0x6e"}},
    {4, "\xef\xbb\xbf{}", 0, {"begins with byte 0xef"}},
    {4, std::string("\0\0{}", 4), 0, {"begins with byte 0x00"}},
    {5, "{}\n", 0, {"0x0a at offset 10", "only spaces"}},
    {5, "{}\t ", 0, {"0x09 at offset 10"}},
    {5, std::string("{}\0", 3), 0, {"0x00 at offset 10"}},
    {5, "{} {}", 0, {"text follows", "offset 11"}},
    {5, "{}}", 0, {"text follows"}},
    {5, "{},{}", 0, {"text follows"}},
    {5, "{} x", 0, {"0x78 at offset 11"}},
    {6, "{", 0, {"0x7b at offset 8"}},
    {6, R"({"a"})", 0, {"not valid JSON"}},
    {6, R"({"a":})", 0, {"not valid JSON"}},
    {6, R"({a:1})", 0, {"not valid JSON"}},
    {6, R"({'a':1})", 0, {"not valid JSON"}},
    {6, R"({/**/})", 0, {"not valid JSON"}},
    {6, R"({,})", 0, {"not valid JSON"}},
    {6,
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},})",
     1,
     {"not valid JSON", "near offset"}},
    {6,
     R"({"a":{"dtype":"U8","shape":[1,],"data_offsets":[0,1]}})",
     1,
     {"not valid JSON", "near offset"}},
    {6, R"({"a":{"dtype":"U8","shape":[1 1],"data_offsets":[0,1]}})", 1, {"not valid JSON"}},
    {6, R"({"a":{"dtype":"U8","shape":[1}})", 1, {"not valid JSON"}},
    {6, R"({"a":{"dtype":"U8" "shape":[1],"data_offsets":[0,1]}})", 1, {"not valid JSON"}},
    {6, R"({"a" {"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, {"not valid JSON"}},
    {6, R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 1, {"not valid JSON"}},
    {6, R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}]})", 1, {"not valid JSON"}},
    {6, "{\"a\x01\":1}", 0, {"not valid JSON", "escaped"}},
    {6, "{\"a\xff\":1}", 0, {"not valid JSON", "UTF-8"}},
    {6, "{\"a\xc0\xaf\":1}", 0, {"not valid JSON", "UTF-8"}},
    {6, "{\"a\xed\xa0\x80\":1}", 0, {"not valid JSON", "UTF-8"}},
    {6, R"({"a\ud800":1})", 0, {"not valid JSON"}},
    {6, R"({"a\q":1})", 0, {"not valid JSON"}},
    {6, R"({"a\u12":1})", 0, {"not valid JSON"}},
    {6, R"({"a:1})", 0, {"not valid JSON"}},
    {7, R"({"a":1})", 0, {"tensor 'a'", "is a number, expected an object"}},
    {7, R"({"a":null})", 0, {"tensor 'a'", "is null, expected an object"}},
    {7, R"({"a":"b"})", 0, {"tensor 'a'", "is a string, expected an object"}},
    {7, R"({"a":[]})", 0, {"tensor 'a'", "is an array, expected an object"}},
    {7, R"({"a":tru})", 0, {"tensor 'a'", "true or false, expected an object"}},
    {7,
     "{\"a\":" + repeated("[", 100'000) + "}",
     0,
     {"tensor 'a'", "is an array, expected an object"}},
    {8, R"({"__metadata__":[]})", 0, {"__metadata__", "is an array, expected an object"}},
    {8, R"({"__metadata__":"x"})", 0, {"__metadata__", "is a string, expected an object"}},
    {8, R"({"__metadata__":nul})", 0, {"not valid JSON"}},
    {8, R"({"__metadata__":{"k":1}})", 0, {"__metadata__", "'k' is a number, expected a string"}},
    {8, R"({"__metadata__":{"k":null}})", 0, {"__metadata__", "'k' is null, expected a string"}},
    {8, R"({"__metadata__":{"k":{"deep":"x"}}})", 0, {"'k' is an object, expected a string"}},
    {8, R"({"__metadata__":{"k":"1","k":"2"}})", 0, {"__metadata__", "the key 'k' appears twice"}},
    {8, R"({"__metadata__":{"k":"1","\u006b":"2"}})", 0, {"the key 'k' appears twice"}},
    {8, R"({"__metadata__":{},"__metadata__":{}})", 0, {"__metadata__ appears twice"}},
    {9, "{\"" + std::string(65'537, 'n') + "\":1}", 0, {"65537 bytes, at most 65536", "nnn…"}},
    {10, R"({"a":{}})", 0, {"tensor 'a'", "\"dtype\" is missing"}},
    {10, R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, {"tensor 'a'", "\"shape\" is missing"}},
    {10, R"({"a":{"dtype":"U8","shape":[1]}})", 1, {"tensor 'a'", "\"data_offsets\" is missing"}},
    {10,
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1]}})",
     1,
     {"tensor 'a'", "unknown field 'stride'"}},
    {10, R"({"a":{"Dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, {"unknown field 'Dtype'"}},
    {10,
     R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
     1,
     {"appears twice", "\"dtype\""}},
    {10,
     R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})",
     1,
     {"appears twice", "\"shape\""}},
    {11, one_tensor(R"("U8")", "[-1]", "[0,1]"), 1, {"\"shape\" holds -1", "an integer"}},
    {11, one_tensor(R"("U8")", "[-0]", "[0,0]"), 0, {"\"shape\" holds -0"}},
    {11, one_tensor(R"("U8")", "[1.0]", "[0,1]"), 1, {"\"shape\" holds 1.0"}},
    {11, one_tensor(R"("U8")", "[1e0]", "[0,1]"), 1, {"\"shape\" holds 1e0"}},
    {11, one_tensor(R"("U8")", "[01]", "[0,1]"), 1, {"\"shape\" holds 01"}},
    {11, one_tensor(R"("U8")", "[0x1]", "[0,1]"), 1, {"\"shape\" holds 0x1"}},
    {11, one_tensor(R"("U8")", "[+1]", "[0,1]"), 1, {"not valid JSON"}},
    {11,
     one_tensor(R"("U8")", "[18446744073709551616]", "[0,1]"),
     1,
     {"holds 18446744073709551616"}},
    {11,
     one_tensor(R"("U8")", "[\"1\"]", "[0,1]"),
     1,
     {"\"shape\" is a string, expected a number"}},
    {11, one_tensor(R"("U8")", "[[1]]", "[0,1]"), 1, {"\"shape\" is an array, expected a number"}},
    {11, one_tensor(R"("U8")", "[NaN]", "[0,1]"), 1, {"not valid JSON"}},
    {11, one_tensor(R"("U8")", "[1]", "[0,1.5]"), 1, {"\"data_offsets\" holds 1.5"}},
    {11, one_tensor(R"("U8")", "[1]", "[-1,0]"), 1, {"\"data_offsets\" holds -1"}},
    {11,
     one_tensor(R"("U8")", "[1]", "[true,1]"),
     1,
     {"\"data_offsets\" is true or false, expected a number"}},
    {12, one_tensor(R"("F128")", "[1]", "[0,16]"), 16, {"tensor 'a'", "dtype 'F128'"}},
    {12, one_tensor(R"("C128")", "[1]", "[0,16]"), 16, {"tensor 'a'", "dtype 'C128'"}},
    {12, one_tensor(R"("bf16")", "[1]", "[0,2]"), 2, {"dtype 'bf16'"}},
    {12, one_tensor(R"("")", "[1]", "[0,2]"), 2, {"dtype ''"}},
    {12, one_tensor("8", "[1]", "[0,1]"), 1, {"\"dtype\" is a number, expected a string"}},
    {12, one_tensor("null", "[1]", "[0,1]"), 1, {"\"dtype\" is null, expected a string"}},
    {13, one_tensor(R"("U8")", "1", "[0,1]"), 1, {"\"shape\" is a number, expected an array"}},
    {13, one_tensor(R"("U8")", "{}", "[0,1]"), 1, {"\"shape\" is an object, expected an array"}},
    {13,
     one_tensor(R"("U8")", "[9223372036854775808,0]", "[0,0]"),
     0,
     {"a dimension is 9223372036854775808", "at most 9223372036854775807"}},
    {13,
     one_tensor(R"("U8")", "[1" + repeated(",1", 64) + "]", "[0,1]"),
     1,
     {"more than 64 dimensions"}},
    {14, one_tensor(R"("U8")", "[1]", "[]"), 1, {"\"data_offsets\" has 0 numbers, expected 2"}},
    {14, one_tensor(R"("U8")", "[1]", "[1]"), 1, {"\"data_offsets\" has 1 numbers, expected 2"}},
    {14, one_tensor(R"("U8")", "[1]", "[0,1,1]"), 1, {"\"data_offsets\" has more than 2 numbers"}},
    {14,
     one_tensor(R"("U8")", "[1]", "{\"0\":1}"),
     1,
     {"\"data_offsets\" is an object, expected an array"}},
    {14, one_tensor(R"("U8")", "[1]", "[1,0]"), 1, {"[1, 0] ends before it begins"}},
    {14,
     one_tensor(R"("U8")", "[1]", "[18446744073709551615,0]"),
     1,
     {"[18446744073709551615, 0] ends before"}},
    {15,
     one_tensor(R"("BF16")", "[64,128]", "[0,4096]"),
     4096,
     {"bytes [0, 4096), 4096 bytes", "shape [64, 128] of BF16 needs 16384"}},
    {15, one_tensor(R"("F32")", "[]", "[0,1]"), 1, {"shape [] of F32 needs 4"}},
    {15, one_tensor(R"("U8")", "[0]", "[0,1]"), 1, {"shape [0] of U8 needs 0"}},
    {15,
     one_tensor(R"("F4")", "[3]", "[0,2]"),
     2,
     {"shape [3] of F4 is not a whole number of bytes"}},
    {15,
     one_tensor(R"("F6_E3M2")", "[2]", "[0,2]"),
     2,
     {"shape [2] of F6_E3M2 is not a whole number of bytes"}},
    {15,
     one_tensor(R"("U8")", "[4294967296,4294967296]", "[0,0]"),
     0,
     {"[4294967296, 4294967296]", "below 2^61"}},
    {15, one_tensor(R"("F64")", "[2305843009213693952]", "[0,0]"), 0, {"below 2^61"}},
    {15, one_tensor(R"("U8")", "[9223372036854775807,3]", "[0,1]"), 1, {"below 2^61"}},
    {16, tensors({u8("a", 0, 1), u8("a", 1, 2)}), 2, {"tensor 'a'", "the name appears twice"}},
    {16,
     tensors({u8("a", 0, 1), u8("b", 1, 2), u8("\\u0061", 2, 3)}),
     3,
     {"tensor 'a'", "the name appears twice"}},
    {16, tensors({u8("x", 0, 0), u8("x", 0, 0)}), 0, {"tensor 'x'", "the name appears twice"}},
    {17,
     tensors({u8("a", 1, 2)}),
     2,
     {"tensor 'a'", "begins at byte 1", "bytes [0, 1) belong to no tensor"}},
    {17,
     tensors({u8("a", 0, 2), u8("b", 3, 5)}),
     5,
     {"tensor 'b'", "begins at byte 3", "[2, 3) belong to no tensor"}},
    {17,
     tensors({u8("a", 0, 3), u8("b", 2, 5)}),
     5,
     {"tensor 'b'", "begins at byte 2", "expected 3", "overlaps tensor 'a'"}},
    {17, tensors({u8("a", 0, 3), u8("b", 0, 3)}), 3, {"overlaps tensor"}},
    {17, tensors({u8("a", 0, 4), u8("b", 1, 1)}), 4, {"tensor 'b'", "overlaps tensor 'a'"}},
    {17,
     one_tensor(R"("U8")", "[1]", "[18446744073709551614,18446744073709551615]"),
     1,
     {"begins at byte 18446744073709551614", "expected 0"}},
    {18,
     tensors({u8("a", 0, 8)}),
     7,
     {"describes 8 bytes", "has 7", "1 bytes are missing", "truncated"}},
    {18, tensors({u8("a", 0, 8)}), 0, {"has 0", "8 bytes are missing"}},
    {18, tensors({u8("a", 0, 8)}), 9, {"has 9", "1 bytes belong to no tensor"}},
    {18, "{}", 1, {"describes 0 bytes", "1 bytes belong to no tensor"}},
    {18,
     one_tensor(R"("U8")", "[2305843009213693951]", "[0,2305843009213693951]"),
     1,
     {"2305843009213693950 bytes are missing"}},
};

TEST(SafetensorsDamage, EveryDamageIsRefusedByASentenceWithTheValues) {
  EXPECT_GE(damages.size(), 60U);
  for (Damage const& damage : damages) {
    std::string const shown_json = damage.json.substr(0, 200);
    auto const error = refusal(file_text(damage.json, damage.data_bytes));
    ASSERT_TRUE(error) << "rule " << damage.rule << " accepted: " << shown_json;
    EXPECT_EQ(error->kind(), ErrorKind::source) << shown_json;
    EXPECT_TRUE(error->sentence().starts_with("model.safetensors")) << error->sentence();
    EXPECT_EQ(error->sentence().find(".. "), std::string::npos) << error->sentence();
    for (std::string const& part : damage.says)
      EXPECT_NE(error->sentence().find(part), std::string::npos)
          << "rule " << damage.rule << ", " << shown_json << "\n says " << error->sentence()
          << "\n not " << part;
  }
}

std::string with_length(std::uint64_t length, std::string_view rest) {
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(rest);
}

TEST(SafetensorsDamage, LengthsBeyondTheFileOrTheFormatAreRefused) {  // rules 2 and 3
  for (std::uint64_t const length : {std::uint64_t{3}, std::uint64_t{100'000'000}}) {
    auto const error = refusal(with_length(length, "{}"));
    ASSERT_TRUE(error) << length;
    EXPECT_NE(error->sentence().find(fmt::format("bytes [0, {}), the file ends at 10", length + 8)),
              std::string::npos)
        << error->sentence();
  }
  for (std::uint64_t const length :
       {std::uint64_t{100'000'001}, std::numeric_limits<std::uint64_t>::max() - 7,
        std::numeric_limits<std::uint64_t>::max()}) {
    auto const error = refusal(with_length(length, "{}"));
    ASSERT_TRUE(error) << length;
    EXPECT_NE(error->sentence().find(
                  fmt::format("{} bytes, the format allows at most 100000000", length)),
              std::string::npos)
        << error->sentence();
  }
}

std::string small_file() {
  std::string const json =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("e":{"dtype":"BF16","shape":[0],"data_offsets":[8,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}}   )";
  return file_text(json, 11);
}

TEST(SafetensorsDamage, EveryTruncationIsRefused) {  // rules 1, 3, 18
  std::string const whole = small_file();
  ASSERT_FALSE(refusal(whole));
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    auto const error = refusal(std::string_view(whole).substr(0, bytes));
    ASSERT_TRUE(error) << bytes;
    EXPECT_EQ(error->kind(), ErrorKind::source);
    EXPECT_NE(error->sentence().find("truncated"), std::string::npos) << error->sentence();
  }
}

TEST(SafetensorsDamage, FewerBytesThanTheHeaderAreRefusedWhateverTheFileSize) {
  std::string const whole = small_file();
  for (std::size_t bytes = 0; bytes + 11 < whole.size(); ++bytes)
    EXPECT_THROW(parse_header(std::as_bytes(std::span(whole)).first(bytes), whole.size(), "x"),
                 Error)
        << bytes;
}

TEST(SafetensorsDamage, TrailingBytesAreRefused) {  // rule 18
  auto const error = refusal(small_file() + "x");
  ASSERT_TRUE(error);
  EXPECT_NE(error->sentence().find("1 bytes belong to no tensor"), std::string::npos)
      << error->sentence();
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool memory_is_real = false;
#else
constexpr bool memory_is_real = true;
#endif

/// A line of /proc/self/status, in bytes: "VmRSS:" now, "VmHWM:" the most since restart_peak().
std::uint64_t memory_bytes(std::string_view line_name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(line_name)) return std::stoull(line.substr(line_name.size())) * 1024;
  return 0;
}

void restart_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

TEST(SafetensorsDamage, BombsCostAtMostEightTimesTheirHeader) {
  constexpr std::size_t bytes = 24'000'000;
  std::vector<std::string> const bombs = {
      R"({"a":)" + repeated("[", bytes) + "}",
      repeated(R"({"a":)", bytes / 5) + "}",
      R"({"a":{"shape":[)" + repeated("1,", bytes / 2) + "}",
      "{" + repeated(u8("x", 0, 0) + ",", bytes / 50) + u8("x", 0, 0) + "}",
      R"({"__metadata__":{)" + repeated(R"("k":"",)", bytes / 7) + R"("k":""}})",
      "{\"" + std::string(bytes, 'n') + "\":1}",
      R"({"a":{"dtype":")" + std::string(bytes, 'n') + R"("}})",
      R"({"a":{"shape":[)" + std::string(bytes, '1') + "]}}",
      "{" + std::string(bytes, ' ') + "}",
  };
  for (std::string const& bomb : bombs) {
    std::string const file = file_text(bomb, 1);
    restart_peak();
    std::uint64_t const before = memory_bytes("VmRSS:");
    auto const error = refusal(file);
    ASSERT_TRUE(error) << bomb.substr(0, 60);
    EXPECT_LT(error->sentence().size(), 700U);
    if (memory_is_real) {
      EXPECT_LT(memory_bytes("VmHWM:"), before + (std::uint64_t{64} << 20) + 8 * bomb.size())
          << bomb.substr(0, 60);
    }
  }
}

TEST(SafetensorsDamage, WithoutMemoryTheHeaderAndWhatItNeedsAreNamed) {
  constexpr std::size_t length = 50'000'000;  // malloc keeps no blocks of this size
  std::string const file = file_text("{" + std::string(length - 2, ' ') + "}");
  EXPECT_FALSE(refusal(file));
  EXPECT_EQ(test::refused_with_memory(1 << 20, [&] { parse(file); }),
            "6: model.safetensors: no memory for a header of 50000000 bytes. Give this rank more "
            "memory.");
  EXPECT_EQ(test::refused_with_memory(length + (20 << 20), [&] { parse(file); }),
            "6: model.safetensors: no memory to parse a header of 50000000 bytes. Give this rank "
            "more memory.");
}

}  // namespace
}  // namespace reshard::safetensors
