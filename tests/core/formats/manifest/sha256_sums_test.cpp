#include "core/formats/manifest/sha256_sums.hpp"

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/hash/sha256.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

std::string const of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
std::string const of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(Sha256Sums, AreWrittenAsCoreutilsDoes) {
  EXPECT_EQ(sums_text({}), "");
  EXPECT_EQ(sums_text({{"b", of_abc}, {"a/x y", of_nothing}, {"B", of_abc}}),
            of_abc + "  B\n" + of_nothing + "  a/x y\n" + of_abc + "  b\n");
  // printf '' > 'a\b'; sha256sum 'a\b'
  EXPECT_EQ(sums_text({{"a\\b", of_nothing}}), "\\" + of_nothing + "  a\\\\b\n");
}

TEST(Sha256Sums, AreReadInEitherModeOfSha256sum) {
  std::vector<FileSum> const sums = {
      {"a", of_nothing}, {"b/c", of_abc}, {"d\\e", of_abc}, {"model é", of_abc}};
  EXPECT_EQ(parse_sums(sums_text(sums), "f"), sums);
  std::string upper = of_abc;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  EXPECT_EQ(parse_sums("# made by hand\n" + upper + " *./b/c\n\n" + of_nothing + "  a", "f"),
            (std::vector<FileSum>{{"a", of_nothing}, {"b/c", of_abc}}));
}

TEST(Sha256Sums, OtherTextsAreRefused) {
  for (std::string const& bad :
       {of_abc, of_abc + " a", of_abc + "  ", of_abc + "\ta\n", "x" + of_abc + "  a",
        of_abc.substr(1) + "g  a", "SHA256 (a) = " + of_abc, of_abc + "  ../a", of_abc + "  /a",
        of_abc + "  a/../b", of_abc + "  SHA256SUMS", "\\" + of_abc + "  a\\nb",
        "\\" + of_abc + "  a\\", "\\" + of_abc + "  a\\x", of_abc + "  a\r\n",
        of_abc + "  a\n" + of_nothing + "  ./a\n"}) {
    auto const error = capture([&] { (void)parse_sums(bad, "some/SHA256SUMS"); });
    ASSERT_TRUE(error) << bad;
    EXPECT_EQ(error->kind(), ErrorKind::source);
    EXPECT_TRUE(error->sentence().starts_with("some/SHA256SUMS: ")) << error->sentence();
  }
}

TEST(Sha256Sums, AreFoundInAFolder) {
  ScratchFolder const scratch("sha256_sums");
  EXPECT_FALSE(find_sums(scratch.path()));
  write_text_file(scratch.path() / "SHA256SUMS", of_abc + "  a\n");
  EXPECT_EQ(find_sums(scratch.path()), (std::vector<FileSum>{{"a", of_abc}}));
}

TEST(Sha256Sums, MustBeAFile) {
  ScratchFolder const scratch("sha256_sums");
  std::filesystem::create_directory(scratch.path() / "SHA256SUMS");
  test::expect_refused(ErrorKind::source, "is not a regular file. Remove it",
                       [&] { find_sums(scratch.path()); });
}

}  // namespace
}  // namespace reshard
