#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/formats/manifest/manifest.hpp"

namespace reshard {
namespace {

std::string const of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
std::string const of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(Integrity, IsWrittenAsMegatronCoreDoes) {
  // json.dump({...}, f, indent=2) of Python.
  EXPECT_EQ(integrity_text({}), "{\n  \"algorithm\": \"sha256\",\n  \"files\": {}\n}");
  EXPECT_EQ(integrity_text({{{".metadata", of_abc}, {"__0_0.distcp", of_nothing}}}),
            "{\n  \"algorithm\": \"sha256\",\n  \"files\": {\n    \".metadata\": \"" + of_abc +
                "\",\n    \"__0_0.distcp\": \"" + of_nothing + "\"\n  }\n}");
  EXPECT_NE(integrity_text({{{"a\"\x7f\u00e9\u20ac\U0001f600\b\f/", of_abc}}})
                .find(R"("a\"\u007f\u00e9\u20ac\ud83d\ude00\b\f/": "ba78)"),
            std::string::npos);
}

TEST(Integrity, IsReadBack) {
  std::string const text = integrity_text({{{"b", of_abc}, {"a/\u00e9", of_nothing}}});
  Integrity const read = parse_integrity(text, "integrity.json");
  ASSERT_EQ(read.files.size(), 2U);
  EXPECT_EQ(read.files[0].path, "a/\u00e9");
  EXPECT_EQ(read.files[0].sha256, of_nothing);
  EXPECT_EQ(read.files[1].path, "b");
  EXPECT_EQ(parse_integrity(R"({"files": {}})", "f").files.size(), 0U)
      << "Megatron-Core takes sha256 when nothing is said";
}

TEST(Integrity, ShowsAValueOfEightyCharactersCompleteAndALongerOneCut) {
  for (std::size_t const characters : {80U, 81U}) {
    std::string const value = "\"" + std::string(characters - 2, 'x') + "\"";
    try {
      (void)parse_integrity("{\"files\": " + value + "}", "integrity.json");
      ADD_FAILURE() << characters;
    } catch (Error const& error) {
      EXPECT_EQ(error.sentence().find("…") == std::string::npos, characters == 80)
          << error.sentence();
      EXPECT_NE(error.sentence().find(value.substr(0, 80)), std::string::npos);
    }
  }
}

TEST(Integrity, RefusesWhatMayHarm) {
  auto const with_path = [](std::string const& path) {
    return R"({"algorithm": "sha256", "files": {")" + path + "\": \"" + of_abc + "\"}}";
  };
  std::vector<std::string> bad = {
      "",
      "{",
      "[]",
      R"({"algorithm": "sha256"})",
      R"({"algorithm": "md5", "files": {}})",
      R"({"algorithm": 1, "files": {}})",
      R"({"files": {"a": 1}})",
      R"({"files": {"a": "ABCD"}})",
      R"({"files": [1]})",
      R"({"files": {"a": ")" + of_abc + R"(", "a": ")" + of_abc + R"("}})"};
  for (char const* path : {"", "/etc/passwd", "..", "a/../b", "../x", "a//b", "./a", "a/", "a\\nb",
                           "a\\u0000b", "a\\u007f"})
    bad.push_back(with_path(path));
  for (std::string const& text : bad) {
    try {
      (void)parse_integrity(text, "somewhere/integrity.json");
      ADD_FAILURE() << text;
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::source);
      EXPECT_TRUE(error.sentence().starts_with("somewhere/integrity.json: ")) << error.sentence();
    }
  }
  EXPECT_NO_THROW((void)parse_integrity(with_path("a/b..c/.d"), "f"));
}

}  // namespace
}  // namespace reshard
