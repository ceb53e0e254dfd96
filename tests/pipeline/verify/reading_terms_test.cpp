#include "pipeline/verify/reading_terms.hpp"

#include <gtest/gtest.h>

#include "pipeline/job/job_field.hpp"
#include "pipeline/job/job_spec.hpp"

namespace reshard {
namespace {

std::filesystem::path maps_folder() {
  return std::filesystem::path(RESHARD_SOURCE_DIR) / "configs" / "models";
}

/// The record of a job with these lines of each table.
Manifest record_of(std::string const& source, std::string const& target, std::string const& model,
                   std::string const& map = "llama") {
  JobSpec const spec = parse_job_spec(
      fmt::format("[source]\npath = \"/a\"\n{}\n[target]\npath = \"/b\"\n{}\n[model]\n{}\n", source,
                  target, model),
      "job.toml", {});
  Manifest manifest;
  manifest.map = map;
  manifest.job = Json(job::recorded_text(spec));
  manifest.source.set("path", spec.source.path);
  return manifest;
}

TEST(ReadingTerms, OfASourceAreThoseOfItsJob) {
  Manifest const record =
      record_of("prefix = \"model.\"\nconfig = \"/gone/config.json\"", "format = \"huggingface\"",
                "map = \"torchtitan_qwen3\"\ntrue_vocab_size = 90");
  ReadingTerms expected;
  expected.prefix = "model.";
  expected.map = "torchtitan_qwen3";
  expected.vocab = 90;
  EXPECT_EQ(terms_of_source(record), expected);  // a file that is gone is none
  EXPECT_EQ(terms_of_source(record_of("", "format = \"huggingface\"", "")), ReadingTerms());
}

TEST(ReadingTerms, OfATargetAreItsPrefixAndTheMapOfItsNames) {
  auto const terms = [](std::string const& target, std::string const& model) {
    return terms_of_target(record_of("", target, model), MapLibrary({maps_folder()}));
  };
  ReadingTerms named;
  named.prefix = "model.";
  named.map = "torchtitan_qwen3";
  EXPECT_EQ(terms("format = \"dcp\"\nprefix = \"model.\"\nmap = \"torchtitan_qwen3\"", ""), named);
  ReadingTerms family;
  family.map = "llama";
  EXPECT_EQ(terms("format = \"huggingface\"", "map = \"llama\""), family);
  // names of the source are not those of the target, and Megatron's say what they are
  EXPECT_EQ(terms("format = \"huggingface\"", "map = \"torchtitan_qwen3\""), ReadingTerms());
  EXPECT_EQ(terms("format = \"torch_dist\"", "map = \"llama\""), ReadingTerms());
}

TEST(ReadingTerms, OfARecordThatCannotBeReadAreNone) {
  Manifest record;
  record.job = Json("[source");
  EXPECT_EQ(terms_of_source(record), ReadingTerms());
  EXPECT_EQ(terms_of_target(record, MapLibrary({maps_folder()})), ReadingTerms());
  EXPECT_FALSE(is_made_from(record, "/a"));
}

TEST(ReadingTerms, WhatWasGivenStays) {
  ReadingTerms given;
  given.prefix = "module.";
  ReadingTerms recorded;
  recorded.prefix = "model.";
  recorded.map = "llama";
  recorded.vocab = 90;
  ReadingTerms const all = completed(given, recorded);
  EXPECT_EQ(all.prefix, "module.");
  EXPECT_EQ(terms_beside(given, all), "map = \"llama\", true_vocab_size = 90");
  EXPECT_EQ(terms_beside(all, all), "");
}

TEST(ReadingTerms, AreThoseOfTheFolderThatTheJobNamed) {
  Manifest const record = record_of("", "format = \"huggingface\"", "");
  EXPECT_TRUE(is_made_from(record, "/a"));
  EXPECT_TRUE(is_made_from(record, "/b/../a/"));
  EXPECT_FALSE(is_made_from(record, "/b"));
}

}  // namespace
}  // namespace reshard
