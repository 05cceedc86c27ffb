"""What prompts are about: short phrases that templates are filled with, in English and Korean. All written for this purpose."""

from __future__ import annotations

CODE_TASKS = (
    "reverses the words of a sentence but keeps the punctuation", "counts the vowels of a string",
    "finds the second largest number of a list", "merges two sorted lists into one", "removes duplicates and keeps the order",
    "checks whether two words are anagrams", "turns a Roman numeral into a number", "groups words by their first letter",
    "returns the digits of a number in reverse", "computes the greatest common divisor of two numbers",
    "flattens a list of lists", "rotates a list by k places", "checks whether brackets are balanced",
    "finds the longest common prefix of some words", "transposes a matrix", "computes a moving average",
    "converts seconds into hours, minutes and seconds", "finds all pairs of numbers with a given sum",
    "parses a line of comma-separated values", "counts how often each word appears in a text",
    "generates the first n prime numbers", "validates an email address", "sorts a list of people by age and then by name",
    "implements binary search", "computes compound interest year by year", "finds the median of a list",
    "encodes a string with run-length encoding", "checks whether a string is a palindrome", "builds a simple stack",
    "implements a queue with two stacks", "shuffles a deck of cards", "computes the factorial without recursion",
    "replaces tabs by spaces", "finds missing numbers in a range", "calculates the distance between two points",
    "lists all files with a given ending", "reads a JSON file and prints its keys", "formats a phone number",
    "converts Celsius to Fahrenheit", "draws a triangle of stars", "computes the nth Fibonacci number with memoisation",
    "simulates rolling two dice", "checks whether a year is a leap year", "finds the most frequent element",
    "splits a list into chunks of n", "compares two version numbers", "hides all but the last four digits of a number",
    "computes the Hamming distance of two strings", "inverts a dictionary", "finds the shortest word of a sentence",
    "adds two binary numbers given as strings", "estimates pi with random points", "sums the diagonal of a square matrix",
    "keeps only the even numbers and squares them", "returns the intersection of two lists", "capitalises every second letter",
)  # fmt: skip
LANGUAGES = ("Python", "Python", "Python", "JavaScript", "Java", "C++", "Go", "TypeScript")
TOPICS = (
    "city gardens", "the history of bridges", "learning a musical instrument", "electric bicycles", "coffee farming",
    "the life of bees", "working from home", "night trains", "public libraries", "volcanoes", "coral reefs", "local elections",
    "sleep and memory", "street food", "recycling of plastics", "solar power on roofs", "a first marathon", "bread baking",
    "chess for beginners", "the migration of birds", "museums for children", "water shortage", "teamwork in small companies",
    "learning a foreign language", "space telescopes", "the invention of printing", "mountain hiking", "school uniforms",
    "traditional pottery", "earthquake warning systems", "a lost dog that came home", "a new football stadium", "wind turbines",
    "online privacy", "time management", "the human heart", "tea ceremonies", "ferry accidents", "robots in hospitals",
    "second-hand clothes", "the price of housing", "dinosaur fossils", "handwriting", "urban cycling", "winter swimming",
    "vaccines", "photography of nature", "the stock market", "community kitchens", "autonomous cars", "a village theatre",
    "honey and health", "the Silk Road", "glaciers", "board games", "rain forests", "career changes", "vegetarian cooking",
    "public speaking", "family budgets", "the moon landing", "old maps", "sea turtles", "forest fires", "jazz music", "castles",
    "fermented food", "desert animals", "bicycle repair", "the Olympic Games", "first aid", "weather forecasts", "sign language",
    "tunnels under the sea", "wooden toys", "science fiction films", "flood protection", "learning to draw", "lighthouses",
    "school lunches", "climbing gyms", "digital cameras", "the deep sea", "folk tales", "morning routines", "paper making",
)  # fmt: skip
NAMES = (
    "Mina", "Tom", "Aisha", "Lars", "Priya", "Diego", "Hana", "Noah", "Elif", "Marcus", "Yuki", "Sofia", "Omar", "Greta", "Jun",
    "Paula", "Ivan", "Leila", "Ben", "Rosa", "Kofi", "Nadia", "Felix", "Clara", "Arjun", "Ines", "Victor", "Zoe",
)  # fmt: skip
THINGS = (
    "apples", "notebooks", "stickers", "marbles", "tickets", "cookies", "books", "stamps", "pencils", "oranges", "candles",
    "eggs", "flowers", "cards", "bottles of juice", "muffins", "chairs", "coins",
)  # fmt: skip
KOREAN_TOPICS = (
    "김치의 역사", "서울의 지하철", "한글 창제", "겨울철 건강 관리", "제주도 여행", "전통 시장", "반려동물 키우기", "인공지능",
    "독서 습관", "등산의 즐거움", "재활용 방법", "시간 관리", "한국의 사계절", "외국어 공부", "아침 운동", "태양광 발전",
    "온라인 쇼핑", "환경 보호", "커피 문화", "자전거 여행", "청소년의 꿈", "도시 농업", "우주 탐사", "면접 준비", "수면의 중요성",
    "전통 음악", "가족 여행 계획", "저축하는 방법", "요리 초보자를 위한 조언", "스트레스 해소", "바다 생물", "미세먼지",
    "팀워크", "박물관 관람", "글쓰기 연습", "스마트폰 사용 시간", "지진 대비", "봉사 활동", "축구 경기", "영화 감상",
)  # fmt: skip
