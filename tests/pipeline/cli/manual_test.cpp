#include "pipeline/cli/manual.hpp"

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "pipeline/cli/roff.hpp"
#include "pipeline/job/job_field.hpp"

namespace reshard {
namespace {

TEST(Manual, DocsJobSpecIsWhatTheProgramSays) {
  std::string const file = read_text_file(RESHARD_SOURCE_DIR "/docs/job-spec.md", 1U << 20U);
  EXPECT_EQ(file, job_spec_markdown())
      << "make it anew: build/dev/pipeline/reshard man job-spec.md > docs/job-spec.md";
}

TEST(Manual, NamesEveryKey) {
  std::string const page = manual_page("reshard.toml.5", {});
  for (job::Field const& field : job::fields()) {
    EXPECT_NE(page.find(fmt::format("\\fB{} = ", field.name)), std::string::npos) << field.name;
    EXPECT_FALSE(field.kind == keys::Kind::number && field.range.empty()) << field.name;
  }
}

TEST(Roff, MakesTextsHarmless) {
  Roff page("T", 1, "2026-11-22", "s", "m");
  page.section("A").paragraph(".so /etc/passwd").paragraph("a\\b 'c' -d ~e \"f\" g\u00b7h");
  EXPECT_EQ(
      page.text(),
      ".TH \"T\" 1 \"2026-11-22\" \"s\" \"m\"\n.SH \"A\"\n\\&.so /etc/passwd\n.PP\na\\eb \\(aqc\\(aq \\-d \\(tie \"f\" g\\[u00B7]h\n");
}

TEST(Roff, GuardsEveryLineOfFilledAndLiteralText) {
  Roff page("T", 1, "2026-11-22", "s", "m");
  page.paragraph(
      "this line is so long that the next word, which begins with a dot, comes on a .next");
  EXPECT_NE(page.text().find("\n\\&.next\n"), std::string::npos) << page.text();
  EXPECT_NE(Roff("T", 1, "d", "s", "m").code("a\n.b").text().find("a\n\\&.b\n.EE\n"),
            std::string::npos);
}

TEST(Roff, ShowsPlaceholdersInItalics) {
  Roff page("T", 1, "2026-11-22", "s", "m");
  page.item("--set <KEY=VALUE>", "text");
  EXPECT_NE(page.text().find(".TP\n\\fB\\-\\-set \\fIKEY=VALUE\\fB\\fR\ntext\n"), std::string::npos)
      << page.text();
}

}  // namespace
}  // namespace reshard
